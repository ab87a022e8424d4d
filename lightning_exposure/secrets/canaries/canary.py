"""`Canary`: a made-up secret and how often it is inserted into the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_exposure._checks import SAFE_NAME, flag, instance, number, refusal, slug, whole_number
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.masking import Mask


@dataclass(frozen=True)
class Canary:
    """A secret to insert `repetitions` times; 0 makes it a control that is never inserted.

    Attributes:
        id: A name for reports, of ``a-z 0-9 . _ -``, unique within a `CanarySet`.
        text: The secret, with its prompt.
        format: What the text looks like.
        repetitions: How many times the text is inserted, unless it is held out.
        held_out: Whether it is left out of the training data after all, to be compared with those that are in.
        holdout: The probability with which a coin of its own left it out; 0 if no coin was tossed.

    Example:
        >>> Canary("door", "the code is 0451", SecretFormat("the code is ####"), repetitions=8).repetitions
        8
    """

    id: str
    text: str
    format: SecretFormat
    repetitions: int
    held_out: bool = False
    holdout: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields, in an order that reports the simplest problem first."""
        if not isinstance(self.id, str) or not SAFE_NAME.fullmatch(self.id):
            raise refusal(
                "id", self.id, "a string of the characters a-z 0-9 . _ -", f"For example {slug(str(self.id))!r}."
            )
        remedy = "Make one, for example SecretFormat('my pin is ####')."
        instance("format", self.format, SecretFormat, "a SecretFormat", remedy)
        object.__setattr__(self, "repetitions", whole_number("repetitions", self.repetitions, at_least=0))
        flag("held_out", self.held_out)
        object.__setattr__(self, "holdout", check_holdout(self.holdout))
        self.format.index(self.text)  # a SecretError says which character does not fit

    def __repr__(self) -> str:
        """Without the blanks of the text: what is printed may be recorded by a logger."""
        text = Mask().text(self.text, self.format)
        return f"{type(self).__name__}({self.id!r}, {text!r}, {self.repetitions} repetitions)"

    @property
    def copies(self) -> int:
        """How many copies belong in the training data: `repetitions`, or none if the canary is held out."""
        return 0 if self.held_out else self.repetitions


def check_holdout(holdout: object) -> float:
    """Return the probability with which a canary is held out: below 1, for else there is nothing to measure.

    >>> check_holdout(1)
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: holdout is 1; expected a number of at least 0 and below 1. For example 0.5.
    """
    return number("holdout", holdout, at_least=0, below=1, remedy="For example 0.5.")


def first_duplicate(values: Sequence[str]) -> tuple[int, int] | None:
    """Return the places of the first two equal values, or None.

    >>> first_duplicate(["a", "b", "a"])
    (0, 2)
    """
    seen: dict[str, int] = {}
    for place, value in enumerate(values):
        if value in seen:
            return seen[value], place
        seen[value] = place
    return None
