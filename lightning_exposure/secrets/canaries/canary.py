"""`Canary`: a made-up secret and how often it is inserted into the training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from lightning_exposure._checks import SAFE_NAME, choice, flag, instance, number, refusal, slug, whole_number
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.masking import Mask

Purpose = Literal["exposure", "audit"]
"""What a canary is for: exposure assumes that all secrets of its format were equally likely, an audit does not."""


class Canary:
    """A secret to insert `repetitions` times; 0 makes it a control that is never inserted.

    It is immutable and hashable. Not a dataclass: loggers take those apart, down to their texts.

    Attributes:
        id: A name for reports, of ``a-z 0-9 . _ -``, unique within a `CanarySet`.
        text: The secret, with its prompt.
        format: What the text looks like.
        repetitions: How many times the text is inserted, unless it is held out.
        held_out: Whether it is left out of the training data after all, to be compared with those that are in.
        holdout: The probability with which a coin of its own left it out; 0 if no coin was tossed.
        purpose: "exposure", or "audit" for one that was picked to be seen well: exposure says nothing about it, for it
            compares with secrets that could as well have been drawn.

    Example:
        >>> Canary("door", "the code is 0451", SecretFormat("the code is ####"), repetitions=8).repetitions
        8
    """

    id: str
    text: str
    format: SecretFormat
    repetitions: int
    held_out: bool
    holdout: float
    purpose: Purpose

    def __init__(
        self,
        id: str,
        text: str,
        format: SecretFormat,
        repetitions: int,
        held_out: bool = False,
        holdout: float = 0.0,
        purpose: Purpose = "exposure",
    ) -> None:
        """Check the fields, in an order that reports the simplest problem first."""
        if not isinstance(id, str) or not SAFE_NAME.fullmatch(id):
            raise refusal("id", id, "a string of the characters a-z 0-9 . _ -", f"For example {slug(str(id))!r}.")
        remedy = "Make one, for example SecretFormat('my pin is ####')."
        instance("format", format, SecretFormat, "a SecretFormat", remedy)
        repetitions = whole_number("repetitions", repetitions, at_least=0)
        flag("held_out", held_out)
        holdout = check_holdout(holdout)
        choice("purpose", purpose, get_args(Purpose))
        format.index(text)  # a SecretError says what does not fit
        self.__dict__.update(
            id=id,
            text=text,
            format=format,
            repetitions=repetitions,
            held_out=held_out,
            holdout=holdout,
            purpose=purpose,
        )

    def replace(self, **changes: Any) -> Canary:
        """The same canary with other fields.

        >>> Canary("door", "pin 0451", SecretFormat("pin ####"), 8).replace(repetitions=1).repetitions
        1
        """
        return type(self)(**{**self.__dict__, **changes})

    def __setattr__(self, attribute: str, value: object) -> None:
        """Refuse: a canary is immutable."""
        raise AttributeError(f"{attribute}: a Canary cannot be changed; make a new one.")

    def __eq__(self, other: object) -> bool:
        """Canaries are equal if all their fields are."""
        return self.__dict__ == other.__dict__ if isinstance(other, Canary) else NotImplemented

    def __hash__(self) -> int:
        """Equal canaries have equal hashes."""
        return hash(tuple(self.__dict__.values()))

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
