"""Texts of one shape: a digit for a digit, a letter for a letter of its case and script, and the rest as it is."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache

DIGITS, LOWER, UPPER = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_BLOCK = 128
_SIGNS = ("#&*+=@^_~-", "!?.:/|")
"""Signs that are part of a password; those of the second kind may not be its last character, nor become it."""

Alphabet = Callable[[str], str]
"""What may stand in the place of a character; the character alone: it stays."""


@lru_cache(maxsize=4096)
def letters_and_digits(character: str) -> str:
    """What may stand in the place of a letter or a digit: those of its case and script; of anything else: itself."""
    for alphabet in (DIGITS, LOWER, UPPER):
        if character in alphabet:
            return alphabet
    if character.isascii() or not character.isalnum():
        return character
    first = ord(character) // _BLOCK * _BLOCK
    category = unicodedata.category(character)
    alike = [chr(code) for code in range(first, first + _BLOCK) if unicodedata.category(chr(code)) == category]
    if category == "Nd":  # the ten digits of the script, of which a block may have several sets
        zero = ord(character) - unicodedata.decimal(character)
        return "".join(chr(zero + digit) for digit in range(10))
    return "".join(alike)


def any_sign(character: str) -> str:
    """The same, and for the signs of a password other signs."""
    return next((signs for signs in _SIGNS if character in signs), letters_and_digits(character))


class Shape:
    """All texts that have the shape of one, numbered.

    Args:
        alphabets: What may stand at each place, each once.

    Example:
        >>> shape = Shape.of("Ab-1")
        >>> shape.size, shape.number_of("Ab-1"), shape.text_of(6759)
        (6760, 11, 'Zz-9')
    """

    def __init__(self, alphabets: Sequence[str]) -> None:
        self.alphabets = alphabets
        self.size = math.prod(map(len, alphabets))

    @classmethod
    def of(cls, text: str, alphabet: Alphabet = letters_and_digits) -> Shape:
        """The shape of a text."""
        return cls([alphabet(character) for character in text])

    @property
    def name(self) -> str:
        """The same for equal shapes."""
        return "\0".join(self.alphabets)

    def text_of(self, number: int) -> str:
        """The text of a number below `size`."""
        found = []
        for alphabet in reversed(self.alphabets):
            number, place = divmod(number, len(alphabet))
            found.append(alphabet[place])
        return "".join(reversed(found))

    def number_of(self, text: str) -> int:
        """The number of a text of this shape."""
        number = 0
        for alphabet, character in zip(self.alphabets, text, strict=True):
            number = number * len(alphabet) + alphabet.index(character)
        return number


def spelled_like(letters: str, original: str) -> str:
    """Letters and digits in the spelling of an original: its separators, the case of its letters, its digits' script.

    >>> spelled_like("666123456", "281-26-5017"), spelled_like("zz42abcd", "DE 89 Wxyz")
    ('666-12-3456', 'ZZ 42 Abcd')
    """
    remaining = iter(letters)
    return "".join(_like(next(remaining), old) if old.isalnum() else old for old in original)


def _like(new: str, old: str) -> str:
    if new.isdigit():
        value = unicodedata.decimal(old, None)
        return new if value is None or old.isascii() else chr(ord(old) - value + int(new))
    return new.upper() if old.isupper() else new.lower()


def plain(text: str) -> str:
    r"""The letters and digits of a text in lower case, digits of any script as those of ours.

    >>> plain("DE 89-\N{FULLWIDTH DIGIT THREE}")
    'de893'
    """
    known = (character for character in text.lower() if character.isalnum())
    return "".join(str(unicodedata.decimal(character, character)) for character in known)
