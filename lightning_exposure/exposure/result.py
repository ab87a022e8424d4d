"""`ExposureEstimate`: what a measurement says about one secret."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from lightning_exposure._html import html_table
from lightning_exposure.secrets import Redaction, SecretFormat
from lightning_exposure.secrets.masking import masked_repr


@dataclass(frozen=True)
class ExposureEstimate:
    """The exposure of one secret. All numbers are finite, except the log-perplexity of an impossible secret.

    Attributes:
        secret: The text.
        bits: Exposure, `log2 |R| - log2 rank`; against a prior, -log2 of the prior probability of all secrets that cost
            at most as much.
        low: The lower end of the interval; equal to `high` exactly where the method is "exact". Decisions belong here.
        high: The upper end.
        method: How it was found: "exact", "counted" (every secret was counted, but rounding leaves ties undecided),
            "importance", "sampling" or "skewnormal".
        rank: How many secrets of the format cost at most as much, this one included: an int where they were counted.
        log_perplexity: What the secret costs, in bits.
        size_bits: log2 |R|, the largest possible exposure without a prior.
        is_bound: Whether `bits` is only a lower bound: nothing in the sample was as cheap as the secret, or the prior
            gives it probability 0.
        confidence: The confidence level of the interval.
        expansions: How many nodes the model read for this answer and the others that share its walks.
        ks_statistic: Skew-normal only: Kolmogorov-Smirnov distance of the fit.
        ks_pvalue: Skew-normal only: its p-value.
        rests_on: What the interval rests on, in words.
        prior_bits: Against a prior only: -log2 of the prior probability of the secret, the largest possible exposure.
        margin_bits: Of a secret of rank 1 only: how many bits the next secret costs more, so that the model would have
            to change by as much before another one took its place.
        margin_is_bound: Whether the next secret was not found, and `margin_bits` is only a lower bound.
    """

    secret: str
    bits: float
    low: float
    high: float
    method: str
    rank: int | float
    log_perplexity: float
    size_bits: float
    is_bound: bool
    confidence: float
    expansions: int
    ks_statistic: float | None = None
    ks_pvalue: float | None = None
    rests_on: str = ""
    prior_bits: float | None = None
    margin_bits: float | None = None
    margin_is_bound: bool = False

    @property
    def ceiling_bits(self) -> float:
        """The largest exposure that this secret can have: log2 |R|, or -log2 of its prior probability."""
        return self.size_bits if self.prior_bits is None else self.prior_bits

    def redacted(self, redaction: Redaction, format: SecretFormat | None = None) -> ExposureEstimate:
        """The same, with its secret as it is to be shown.

        Args:
            redaction: What is shown in full.
            format: What the secret looks like; None: that is not known.

        Example:
            >>> found = ExposureEstimate("pin 1234", 13.3, 13.3, 13.3, "exact", 1, 3.0, 13.3, False, 0.95, 9)
            >>> found.redacted(Redaction(), SecretFormat("pin ####")).secret
            'pin •••• (pin-...)'
        """
        return replace(self, secret=redaction.text(self.secret, format))

    def __repr__(self) -> str:
        """Without the secret."""
        return masked_repr(self, "secret")

    def __str__(self) -> str:
        """One line for people, without the secret."""
        sign = ">=" if self.is_bound else "="
        interval = "" if self.low == self.high else f" [{self.low:.2f}, {self.high:.2f}]"
        scale = f"of {self.ceiling_bits:.2f} bits ({self.method})"
        return f"{Redaction().text(self.secret)}: exposure {sign} {self.bits:.2f}{interval} {scale}"

    def _repr_html_(self) -> str:
        """For notebooks, without the secret: they are shared."""
        at_least = "at least " if self.is_bound else ""
        rank = f"{self.rank:,}" if isinstance(self.rank, int) else f"about {self.rank:,.1f}"
        rows = [
            ("exposure", f"{at_least}{self.bits:.2f} of {self.ceiling_bits:.2f} bits"),
            ("interval", f"{self.low:.2f} to {self.high:.2f}"),
            ("rank", rank),
            ("method", self.method),
            ("rests on", self.rests_on),
        ]
        return html_table(Redaction().text(self.secret), [row for row in rows if row[1]])

    def to_dict(self) -> dict[str, object]:
        """All attributes as they are, the secret too; `redacted` first where it must not be read."""
        return asdict(self)
