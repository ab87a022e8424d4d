"""`Canary`: a made-up secret and how often it is inserted into the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_exposure._checks import SAFE_NAME, slug, whole_number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets.formats.format import SecretFormat


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
            raise ArgumentError(
                f"id={self.id!r}: expected a string of the characters a-z 0-9 . _ -; try {slug(str(self.id))!r}."
            )
        if not isinstance(self.format, SecretFormat):
            raise ArgumentError(
                f"format={self.format!r}: expected a SecretFormat, got {type(self.format).__name__}; "
                "make one, for example SecretFormat('my pin is ####')."
            )
        object.__setattr__(self, "repetitions", whole_number("repetitions", self.repetitions, at_least=0))
        if not isinstance(self.held_out, bool):
            raise ArgumentError(
                f"held_out={self.held_out!r}: expected True or False, got {type(self.held_out).__name__}."
            )
        object.__setattr__(self, "holdout", probability(self.holdout, "holdout"))
        self.format.index(self.text)  # a SecretError says which character does not fit

    @property
    def copies(self) -> int:
        """How many copies belong in the training data: `repetitions`, or none if the canary is held out."""
        return 0 if self.held_out else self.repetitions


def probability(value: object, argument: str) -> float:
    """Return `value` as a probability below 1, or say which `argument` is not one.

    >>> probability(1, "holdout")
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: holdout=1: expected a probability of at least 0 and below 1, such as 0.5.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ArgumentError(f"{argument}={value!r}: expected a probability of at least 0 and below 1, such as 0.5.")
    return float(value)


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
