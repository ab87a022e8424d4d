"""A deterministic acceptor: after each character, which characters may follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from lightning_exposure._checks import OutOfRangeError, refusal
from lightning_exposure.secrets.formats._reading import Reader, State
from lightning_exposure.secrets.formats.graph import walk


class Acceptor:
    """Accepts exactly the texts of a format, from their very first character.

    States are numbered from 0, the start, in breadth-first order. From every state a complete text can be
    reached.

    >>> from lightning_exposure.secrets import SecretFormat
    >>> acceptor = SecretFormat("pin #").acceptor()
    >>> sorted(acceptor.edges(acceptor.walk("pin ")))[:3]
    ['0', '1', '2']
    >>> acceptor.accepting(acceptor.walk("pin 7"))
    True
    >>> acceptor.walk("pin x") is None
    True
    """

    def __init__(self, edges: Sequence[Mapping[str, int]], accepting: Sequence[bool]) -> None:
        """Make an acceptor of the edges of each state and whether a text may end there."""
        self._edges = tuple(dict(outgoing) for outgoing in edges)
        self._accepting = tuple(accepting)

    @property
    def start(self) -> int:
        """The state before the first character."""
        return 0

    def edges(self, state: int) -> Mapping[str, int]:
        """Return the characters that can follow, and the state after each."""
        return MappingProxyType(self._edges[self._checked(state)])

    def accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return self._accepting[self._checked(state)]

    def walk(self, text: str, state: int = 0) -> int | None:
        """Return the state after reading `text` from `state`, or None if a character does not fit."""
        return walk(self, text, self._checked(state))

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self._edges)

    def __repr__(self) -> str:
        """Say how large it is."""
        return f"<Acceptor of {len(self)} states>"

    def _checked(self, state: int) -> int:
        # Without this, -1 would quietly mean the last state.
        if not 0 <= state < len(self._edges):
            remedy = "Take it from walk() or edges()."
            raise refusal("state", state, f"a state from 0 to {len(self) - 1}", remedy, error=OutOfRangeError)
        return state


def build_acceptor(reader: Reader) -> Acceptor:
    """Make a reader deterministic: a new state is the set of the reader's states after the same characters.

    Nothing has to be pruned: every state of a reader can be completed, also with a checksum, as the check
    digit comes last and can complete any sum.
    """
    sets: list[frozenset[State]] = [frozenset([reader.start])]
    number = {sets[0]: 0}
    edges: list[dict[str, int]] = []
    # The list grows while it is walked, which makes it the queue of a breadth-first search.
    for states in sets:
        following: dict[str, set[State]] = {}
        for state in sorted(states):
            for character, after in reader.steps(state).items():
                following.setdefault(character, set()).update(after)
        outgoing: dict[str, int] = {}
        for character, reached in following.items():
            target = frozenset(reached)
            if target not in number:
                number[target] = len(sets)
                sets.append(target)
            outgoing[character] = number[target]
        edges.append(outgoing)
    return Acceptor(edges, [any(map(reader.accepts, states)) for states in sets])
