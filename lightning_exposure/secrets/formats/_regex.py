"""`RegexFormat`: all the texts that a regular expression matches, as long as they are finitely many."""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import Any

from lightning_exposure._checks import refusal, slug
from lightning_exposure.errors import FormatError, SecretError
from lightning_exposure.secrets.formats._counting import Counting
from lightning_exposure.secrets.formats._regular import acceptor_of
from lightning_exposure.secrets.formats.acceptor import Acceptor
from lightning_exposure.secrets.formats.format import SecretFormat, check_name
from lightning_exposure.secrets.formats.misfits import misfit


class RegexFormat(SecretFormat):
    r"""The texts of a regular expression, numbered in alphabetical order; made by `SecretFormat.regex`.

    What all of them begin with is the prompt, and what follows is one blank.

    >>> code = SecretFormat.regex(r"code [a-c]{1,2}")
    >>> code.size, code.prompt, code.render(1), code.index("code cc")
    (12, 'code ', 'code aa', 11)
    """

    def __init__(self, pattern: str, /, *, name: str | None = None) -> None:
        """Make the format of an expression; FormatError if it does not match finitely many texts, at least two."""
        check_name(name)
        acceptor = acceptor_of(pattern)
        self.__dict__.update(pattern=pattern, words=MappingProxyType({}), checksum=None, _slots=())
        self.__dict__.update(_acceptor=acceptor, _numbering=Counting(acceptor), prompt=_common_beginning(acceptor))
        self.__dict__.update(name=slug(self.prompt) if name is None else name)
        try:
            "".join(self.covering()).encode()
        except UnicodeEncodeError as error:
            raise FormatError(
                f"regex is {pattern!r}, which matches half of a surrogate pair ({error.object[error.start]!r}); "
                "expected text that can be written as UTF-8. Leave it out."
            ) from None

    @property
    def _key(self) -> tuple[object, ...]:
        return "regex", self.pattern, self.name

    def __repr__(self) -> str:
        """Show how the format is made."""
        name = "" if self.name == slug(self.prompt) else f", name={self.name!r}"
        return f"SecretFormat.regex({self.pattern!r}{name})"

    def to_dict(self) -> dict[str, Any]:
        """Return the format as plain strings, ready for JSON."""
        return {**super().to_dict(), "kind": "regex"}

    @cached_property
    def prompt(self) -> str:
        """What all texts begin with."""
        return _common_beginning(self.acceptor())

    @property
    def masked(self) -> str:
        """The prompt and one blank, whatever its length."""
        return f"{self.prompt}••••"

    def index(self, text: str) -> int:
        """Return the number of a secret; SecretError says where a text does not fit."""
        self._check(text)
        return self._numbering.number_of(text)

    def fillings(self, text: str) -> tuple[str, ...]:
        """Return what stands behind the prompt, as the filling of one blank."""
        self._check(text)
        return (text[len(self.prompt) :],)

    def alternatives(self, text: str) -> list[frozenset[str]]:
        """Return for each character of a secret those that may stand there, given what stands before it."""
        self._check(text)
        found, state = [], 0
        for character in text:
            edges = self.acceptor().edges(state)
            found.append(frozenset(edges))
            state = edges[character]
        return found

    def _check(self, text: str) -> None:
        """Refuse a text that is no secret of the format."""
        if not isinstance(text, str):
            raise refusal("text", text, "a string", self._remedy, error=SecretError, with_type=True)
        if not self.fits(text):
            raise SecretError(f"text does not fit: {misfit(self.acceptor(), text)}. {self._remedy}")

    @property
    def _remedy(self) -> str:
        return f"Give a text of the format {self.pattern!r}."


def same_blank(one: SecretFormat, other: SecretFormat) -> bool:
    """Whether two formats have the same texts behind their prompts."""
    ours, theirs = one.acceptor(), other.acceptor()
    start = ours.walk(one.prompt), theirs.walk(other.prompt)
    pairs = [start]
    for mine, yours in pairs:  # grows while it is walked
        assert mine is not None
        assert yours is not None
        edges, others = ours.edges(mine), theirs.edges(yours)
        if ours.accepting(mine) != theirs.accepting(yours) or edges.keys() != others.keys():
            return False
        pairs += {(edges[c], others[c]): None for c in edges if (edges[c], others[c]) not in pairs}
    return True


def _common_beginning(acceptor: Acceptor) -> str:
    """The characters that all texts begin with."""
    characters: list[str] = []
    state = acceptor.start
    while len(acceptor.edges(state)) == 1 and not acceptor.accepting(state):
        ((character, state),) = acceptor.edges(state).items()
        characters.append(character)
    return "".join(characters)
