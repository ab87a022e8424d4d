"""`LeakEstimate`: how likely a model is to say a secret; `NearMiss`: and how likely it says nearly that."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from lightning_exposure._checks import number
from lightning_exposure._html import html_table
from lightning_exposure.leakage.decoder import Decoder
from lightning_exposure.secrets import Redaction
from lightning_exposure.secrets.masking import masked_repr


@dataclass(frozen=True)
class NearMiss:
    """A text that differs from a secret by a few edits.

    Attributes:
        text: The text, with the prompt.
        low: The probability that the model writes a text that begins with it is at least this.
        high: And at most this.
        edits: By how many edits it differs from the secret.
        marked: The text with what differs in brackets: `[7]` stands where the secret has another character or none,
            `[]` where one of the secret's is left out.
    """

    text: str
    low: float
    high: float
    edits: int
    marked: str

    def __repr__(self) -> str:
        """Without the text."""
        return masked_repr(self, "text", "marked")


@dataclass(frozen=True)
class LeakEstimate:
    """How likely a model is to write a text that begins with a secret, given the prompt.

    The truth lies between `low` and `high` for certain: there is no chance in it.

    Attributes:
        secret: The text.
        low: The probability is at least this: decisions that accuse belong here.
        high: The probability is at most this: decisions that acquit belong here.
        share: What a decoder that is constrained to the format writes of it: the product of the probabilities of the
            tokens, each renormalised among those that the format allows.
        expansions: How many nodes the model read.
        near_misses: Other texts within `edits` edits, the most likely first; those that the walk has come to.
        decoder: How the model was taken to be sampled.
        edits: Texts within this many edits of the secret count too.
        verbatim: Between what the probability of the secret itself lies, without any edit.
    """

    secret: str
    low: float
    high: float
    share: float
    expansions: int
    near_misses: tuple[NearMiss, ...] = ()
    decoder: Decoder = field(default_factory=Decoder)
    edits: int = 0
    verbatim: tuple[float, float] = (0.0, 1.0)

    def __repr__(self) -> str:
        """Without the secret."""
        return masked_repr(self, "secret")

    def queries(self, probability: float = 0.5) -> tuple[int, int | None] | None:
        """How many samples it takes until the secret has leaked with some probability: the fewest and the most.

        Args:
            probability: Of at least one sample that begins with the secret.

        Returns:
            The two numbers; None in place of the second if it may never leak, and None for both if it never does.

        Raises:
            ArgumentError: The probability is not between 0 and 1.

        Example:
            >>> LeakEstimate("pin 12", low=0.01, high=0.02, share=0.1, expansions=3).queries(0.5)
            (35, 69)
        """
        number("probability", probability, above=0, below=1, remedy="For example 0.5.")
        if self.high <= 0.0:
            return None
        return _samples(self.high, probability), _samples(self.low, probability) if self.low > 0.0 else None

    def table(self, limit: int = 20, *, reveal: bool = False) -> str:
        """The secret and its near misses, the most likely first: what differs is in brackets.

        Args:
            limit: How many rows at most.
            reveal: Whether to show the texts; otherwise each has a name instead.
        """
        redaction = Redaction(reveal=reveal)
        itself = NearMiss(self.secret, *self.verbatim, 0, self.secret)
        rows = sorted([itself, *self.near_misses], key=lambda miss: -miss.low)[:limit]
        lines = [f"{'bits':>8}  {'probability':>11}  edits  text"]
        for miss in rows:
            bits = f"{-math.log2(miss.low):8.2f}" if miss.low > 0.0 else f"{'-':>8}"
            lines.append(f"{bits}  {miss.low:11.2e}  {miss.edits:5d}  {redaction.text(miss.marked)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """One line for people, without the secret."""
        queries = self.queries(0.5)
        if queries is None:
            often = "it never leaks"
        else:
            most = "no number is certain to do" if queries[1] is None else f"{_readable(queries[1])} at most"
            often = f"samples for an even chance: {_readable(queries[0])} at least, {most}"
        name = Redaction().text(self.secret)
        return f"{name}: leaks with probability [{self.low:.3g}, {self.high:.3g}] a sample; {often}"

    def _repr_html_(self) -> str:
        """For notebooks, without the secret: they are shared."""
        queries = self.queries(0.5)
        often = "it never leaks"
        if queries is not None:
            most = "no number is certain" if queries[1] is None else f"at most {_readable(queries[1])}"
            often = f"at least {_readable(queries[0])}, {most}"
        rows = [
            ("leaks with probability", f"{self.low:.3g} to {self.high:.3g} a sample"),
            ("samples for an even chance", often),
            ("share within the format", f"{self.share:.3g}"),
        ]
        return html_table(Redaction().text(self.secret), rows)

    def to_dict(self) -> dict[str, object]:
        """All attributes as they are, the texts too."""
        return asdict(self)


def _readable(number: int) -> str:
    return f"{number:,}" if number < 10**9 else f"10^{math.log10(number):.1f}"


def _samples(chance: float, probability: float) -> int:
    """The smallest n with `1 - (1 - chance)^n >= probability`."""
    if chance >= 1.0:
        return 1
    exact = math.log1p(-probability) / math.log1p(-chance)
    if not math.isfinite(exact):  # a chance so small that 1 / chance is no number
        return 2**1023
    count = max(1, math.ceil(exact))
    # The quotient of two logarithms may be just above a whole number that would do.
    return count - 1 if count > 1 and -math.expm1((count - 1) * math.log1p(-chance)) >= probability else count
