"""The texts of a format, character by character: what the tokens of a tree must spell.

A graph whose paths from the start to an accepting state are the secrets, with what always stands before them, such as
a chat template, in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lightning_exposure.secrets.formats.graph import count_paths

if TYPE_CHECKING:
    from lightning_exposure.secrets import SecretFormat


class Stretch(NamedTuple):
    """A part of some texts."""

    start: int
    """The state before it."""
    text: str
    """Its characters."""
    end: int
    """The state behind it."""


class Texts:
    """All texts of a format, after a fixed text.

    States keep their numbers when the texts are narrowed to those with a known beginning.

    Args:
        edges: For each state, the characters that may follow and the state after each.
        accepting: For each state, whether a text may end there.
        start: The state before the first character.
        before: What stands in front of every secret.

    Attributes:
        readings: What an edge adds to a text, by its state and character, where that is not the character itself.

    Example:
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.secrets.formats.graph import accepts
        >>> texts = Texts.of(SecretFormat("pin ##"), before="> ")
        >>> texts.count(), texts.narrowed("pin 4").count()
        (100, 10)
        >>> accepts(texts, "> pin 42")
        True
    """

    def __init__(
        self, edges: Sequence[Mapping[str, int]], accepting: Sequence[bool], start: int, before: str = ""
    ) -> None:
        self._edges = list(edges)
        self._accepting = list(accepting)
        self.start = start
        self.before = before
        self.readings: dict[tuple[int, str], str] = {}

    @classmethod
    def of(cls, format: SecretFormat, before: str = "") -> Texts:
        """The secrets of a format, each after the same text."""
        acceptor = format.acceptor()
        edges: list[Mapping[str, int]] = [acceptor.edges(state) for state in range(len(acceptor))]
        accepting = [acceptor.accepting(state) for state in range(len(acceptor))]
        first = len(edges)
        for position, character in enumerate(before):
            last = position == len(before) - 1
            edges.append({character: acceptor.start if last else first + position + 1})
            accepting.append(False)
        return cls(edges, accepting, first if before else acceptor.start, before)

    def __len__(self) -> int:
        """How many states there are."""
        return len(self._edges)

    def edges(self, state: int, /) -> Mapping[str, int]:
        """The characters that may follow at a state, and the state after each."""
        return self._edges[state]

    def accepting(self, state: int, /) -> bool:
        """Whether a text may end at a state."""
        return self._accepting[state]

    @property
    def plain(self) -> Texts:
        """The texts alone, without edges for tokens that are cut out of them."""
        return self

    def narrowed(self, known: str) -> Texts:
        """Only those whose secret begins with a known text, which some of them must.

        No path comes back to a state that it has passed, so that taking away the other ways out of the states on the
        known way takes away exactly the other texts.
        """
        narrow = Texts(self._edges, self._accepting, self.start, self.before)
        state = self.start
        for character in self.before + known:
            narrow._edges[state] = {character: self._edges[state][character]}
            narrow._accepting[state] = False
            state = self._edges[state][character]
        return narrow

    def count(self) -> int:
        """How many texts there are."""
        return count_paths(self.plain)

    def cut_out_over(self, position: int, fixed: Sequence[int], /) -> bool:
        """Whether a token that is cut out of the texts may reach over a position of their fixed part.

        Args:
            position: How many characters stand before it.
            fixed: The states of the fixed part, the last one included.
        """
        return False


def fixed_part(texts: Texts, length: int) -> tuple[str, list[int]]:
    """The first so many characters, which all texts begin with, and the states on the way, the last one included."""
    states, beginning = [texts.start], ""
    while len(beginning) < length:
        ((character, state),) = texts.edges(states[-1]).items()
        states.append(state)
        beginning += character
    return beginning, states


def behind_spaces(texts: Texts, state: int) -> list[tuple[str, int]]:
    """A state, and those that only spaces lead to from it, with the spaces."""
    found = [("", state)]
    for spaces, place in found:  # grows while it is walked
        found.extend((spaces + c, target) for c, target in texts.edges(place).items() if c.isspace())
    return found
