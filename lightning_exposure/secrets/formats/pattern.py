r"""From a pattern such as ``"my ssn is ###-##-####"`` to its slots: literal texts and blanks.

``#`` is a digit, ``?`` a lower-case letter, ``{name}`` an entry of a word list; ``\#``, ``\?``, ``\{`` and
``\\`` stand for the characters themselves.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lightning_exposure._checks import refusal
from lightning_exposure.errors import FormatError

DIGITS = tuple(string.digits)
LETTERS = tuple(string.ascii_lowercase)

RESERVED_NAMES = ("name", "checksum")
"""Keywords of a format that mean something else than a word list."""

_TOKEN = re.compile(
    r"\\(?P<escaped>[#?{\\])|(?P<blank>[#?])|\{(?P<words>[^{}]*)\}|(?P<wrong>[\\{])|(?P<text>[^\\{#?]+)"
)


@dataclass(frozen=True)
class Slot:
    """A piece of a format: a literal text (one choice), or a blank that is filled with one of its choices."""

    kind: Literal["text", "digit", "letter", "words"]
    choices: tuple[str, ...]

    @property
    def is_blank(self) -> bool:
        """Whether the slot is a blank; a word list with a single entry is one too."""
        return self.kind != "text"

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The position of each choice."""
        return {choice: position for position, choice in enumerate(self.choices)}


def escape(text: str) -> str:
    r"""Return the pattern that stands for `text` itself.

    >>> print(escape("apartment #"))
    apartment \#
    """
    return re.sub(r"[#?{\\]", r"\\\g<0>", text)


def parse(pattern: str, words: Mapping[str, tuple[str, ...]]) -> tuple[Slot, ...]:
    """Split a pattern into slots; adjacent literal texts become one slot.

    >>> [slot.kind for slot in parse("pin: ##", {})]
    ['text', 'digit', 'digit']
    """
    if not isinstance(pattern, str):
        raise refusal("pattern", pattern, "a string such as 'my pin is ####'", error=FormatError)
    _require_unicode(pattern, "pattern")
    slots: list[Slot] = []
    literal = ""
    for token in _TOKEN.finditer(pattern):
        if token["escaped"] or token["text"]:
            literal += token["escaped"] or token["text"]
            continue
        if literal:
            slots.append(Slot("text", (literal,)))
            literal = ""
        slots.append(_blank(token, pattern, words))
    if literal:
        slots.append(Slot("text", (literal,)))
    _check_use(pattern, slots, words)
    return tuple(slots)


def check_words(name: str, given: object) -> tuple[str, ...]:
    """Return a word list as a tuple, or say what is wrong with it."""
    expected = "a list of different strings such as ['red', 'green']"
    # A set lists its words in another order in every run, and with it would change the number of a secret.
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise refusal(name, given, expected, "Make it a list.", error=FormatError, with_type=True)
    if not given:
        raise refusal(name, given, expected, "Give it at least one entry.", error=FormatError)
    first_place: dict[str, int] = {}
    for place, word in enumerate(given):
        if not isinstance(word, str):
            remedy = f"{name} has to be {expected}; convert its entries with str()."
            raise refusal(f"{name}[{place}]", word, "a string", remedy, error=FormatError, with_type=True)
        _require_unicode(word, f"{name}[{place}]")
        if word in first_place:
            raise FormatError(
                f"{name}[{place}] is {word!r}, a duplicate of {name}[{first_place[word]}]; expected {expected}. Remove "
                "one of them."
            )
        first_place[word] = place
    return tuple(given)


def _blank(token: re.Match[str], pattern: str, words: Mapping[str, tuple[str, ...]]) -> Slot:
    if token["blank"]:
        return Slot("digit", DIGITS) if token["blank"] == "#" else Slot("letter", LETTERS)
    where = f"position {token.start()}"
    if token["wrong"] == "{":
        raise FormatError(
            f"pattern is {pattern!r}, and the brace at {where} is not closed; expected '{{name}}'. "
            r"Close it, or write '\{' for the character itself."
        )
    if token["wrong"]:
        sequence = pattern[token.start() : token.start() + 2]
        raise FormatError(
            f"pattern is {pattern!r}, with an unknown escape {sequence} at {where}; "
            r"expected one of \# \? \{ \\. Write \\ for a backslash itself."
        )
    name = token["words"]
    if name not in words:
        known = ", ".join(words) or "none"
        usable = name.isidentifier() and name not in RESERVED_NAMES
        remedy = f"Pass {name}=[...]" if usable else "Use a name such as {city} and pass city=[...]"
        raise FormatError(
            f"pattern is {pattern!r}, and there is no word list for {{{name}}} at {where}; "
            rf"expected one of the given word lists: {known}. {remedy}, or write '\{{' for the character itself."
        )
    return Slot("words", words[name])


def _check_use(pattern: str, slots: Sequence[Slot], words: Mapping[str, tuple[str, ...]]) -> None:
    used = {token["words"] for token in _TOKEN.finditer(pattern)}
    for name in words:
        if name not in used:
            raise FormatError(
                f"{name} is a word list that the pattern {pattern!r} does not use; "
                f"expected {{{name}}} in it. Add it, or leave out {name}=[...]."
            )
    if not any(slot.is_blank for slot in slots):
        raise FormatError(
            f"pattern is {pattern!r}, with nothing to fill in; expected at least one blank. "
            "Add '#' (a digit), '?' (a letter) or '{name}' with name=[...]."
        )


def _require_unicode(text: str, argument: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(
            f"{argument} is {text!r}, whose character {error.start} is half of a surrogate pair; "
            "expected text that can be written as UTF-8. Decode the text again."
        ) from None
