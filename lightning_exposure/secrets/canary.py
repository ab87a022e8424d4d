"""`Canary`: a made-up secret and how often it is inserted into the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_exposure.errors import ArgumentError
from lightning_exposure.secrets.arguments import SAFE_NAME, slug, whole_number
from lightning_exposure.secrets.formats import SecretFormat


@dataclass(frozen=True)
class Canary:
    """A secret to insert `repetitions` times; 0 makes it a control that is never inserted.

    Attributes:
        id: A name for reports, of ``a-z 0-9 . _ -``, unique within a `CanarySet`.
        text: The secret, with its prompt.
        format: What the text looks like.
        repetitions: How many times the text is inserted.

    Example:
        >>> Canary("door", "the code is 0451", SecretFormat("the code is ####"), repetitions=8).repetitions
        8
    """

    id: str
    text: str
    format: SecretFormat
    repetitions: int

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
        object.__setattr__(self, "repetitions", whole_number(self.repetitions, "repetitions", minimum=0))
        self.format.index(self.text)  # a SecretError says which character does not fit


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
