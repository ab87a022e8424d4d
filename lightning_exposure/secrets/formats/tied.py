"""`TiedFormats`: secrets that stand in two texts at once, such as a sentence and its translation."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_exposure._checks import refusal
from lightning_exposure.errors import FormatError
from lightning_exposure.secrets.formats._regex import RegexFormat, same_blank
from lightning_exposure.secrets.formats.format import SecretFormat


@dataclass(frozen=True)
class TiedFormats:
    """Two formats whose blanks are always filled alike: the same number in a sentence and in its translation.

    The first blank of one is tied to the first of the other, and so on. Tied blanks have equally many choices, and
    are filled with the same choice: with the same digit, or with words at the same place in two word lists.

    Args:
        source: What the source looks like.
        target: What the target looks like; its texts are called the secrets.

    Raises:
        FormatError: The blanks of the two do not correspond.

    Example:
        >>> pin = TiedFormats(SecretFormat("my pin is ####"), SecretFormat("meine pin ist ####"))
        >>> pin.size, pin.source_of("meine pin ist 0815")
        (10000, 'my pin is 0815')
        >>> number = TiedFormats(
        ...     SecretFormat("{digit} cats", digit=["one", "two"]), SecretFormat("{zahl} Katzen", zahl=["eine", "zwei"])
        ... )
        >>> number.pair(1)
        ('two cats', 'zwei Katzen')
    """

    source: SecretFormat
    target: SecretFormat

    def __post_init__(self) -> None:
        """Refuse formats that do not correspond."""
        for name in ("source", "target"):
            given = getattr(self, name)
            if not isinstance(given, SecretFormat):
                raise refusal(name, given, "a SecretFormat", "Make one of the pattern.", error=FormatError)
        if isinstance(self.source, RegexFormat) or isinstance(self.target, RegexFormat):
            self._check_texts()
            return
        ours, theirs = _choices(self.source), _choices(self.target)
        if ours != theirs:
            raise FormatError(
                f"source is {self.source.pattern!r}, whose blanks have {ours} choices, and target is "
                f"{self.target.pattern!r} with {theirs}; expected the same numbers in the same order, as each blank of "
                "the one is filled as that of the other. Write the same blanks in both."
            )
        if self.source.size != self.target.size:
            raise FormatError(
                f"source has the checksum {self.source.checksum!r} and target {self.target.checksum!r}; expected the "
                "same, so that both have the same secrets. Give both formats the checksum."
            )

    def _check_texts(self) -> None:
        """A regular expression is one blank: the other format must have the same texts behind its prompt."""
        # Word lists are not numbered alphabetically, as the texts of an expression are.
        listed = bool(self.source.words or self.target.words)
        if listed or not same_blank(self.source, self.target):
            raise FormatError(
                f"source is {self.source.pattern!r} and target is {self.target.pattern!r}, which differ in more than "
                "their prompts; expected the same texts behind both, as the blank of a regular expression is filled as "
                "a whole. Write the same expression behind each prompt."
            )

    @property
    def size(self) -> int:
        """How many pairs there are: |R|."""
        return self.target.size

    @property
    def bits(self) -> float:
        """log2 |R|: the largest possible exposure."""
        return self.target.bits

    def pair(self, index: int) -> tuple[str, str]:
        """The source and the target of a number from 0 to ``size - 1``."""
        return self.source.render(index), self.target.render(index)

    def source_of(self, secret: str) -> str:
        """The source that belongs to a target.

        Raises:
            SecretError: The text is not a secret of the target's format.
        """
        return self.source.render(self.target.index(secret))


def _choices(format: SecretFormat) -> list[int]:
    """How many choices each blank has."""
    columns = zip(*map(format.fillings, format.covering()), strict=True)
    return [len(set(column)) for column in columns]
