"""The secrets of a format that begin with a known text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_exposure.secrets import Acceptor


class Beginning:
    """A format's automaton over characters, with the first characters fixed.

    States are numbered: below `len(known)` they count the known characters that were read, from there on they are
    the format's own states behind them.

    Args:
        acceptor: The format's automaton.
        known: What every text begins with; some text of the format must.
    """

    def __init__(self, acceptor: Acceptor, known: str) -> None:
        self._acceptor = acceptor
        self._known = known

    def edges(self, state: int, /) -> Mapping[str, int]:
        """The characters that may follow, and the state after each."""
        fixed = len(self._known)
        if state >= fixed:
            return {character: fixed + after for character, after in self._acceptor.edges(state - fixed).items()}
        return {self._known[state]: self._after(state + 1)}

    def accepting(self, state: int, /) -> bool:
        """Whether a text may end here."""
        return state >= len(self._known) and self._acceptor.accepting(state - len(self._known))

    def walk(self, text: str) -> int | None:
        """The state after the beginning of a text; None if it does not fit."""
        state = self._after(0)
        for character in text:
            following = self.edges(state).get(character)
            if following is None:
                return None
            state = following
        return state

    def completions(self) -> int:
        """How many texts there are."""
        total = 0
        ways = {self._after(len(self._known)): 1}  # how many beginnings of one length lead to each state
        while ways:
            total += sum(count for state, count in ways.items() if self.accepting(state))
            longer: dict[int, int] = {}
            for state, count in ways.items():
                for after in self.edges(state).values():
                    longer[after] = longer.get(after, 0) + count
            ways = longer
        return total

    def _after(self, read: int) -> int:
        """The state when so many of the known characters were read."""
        if read < len(self._known):
            return read
        state = self._acceptor.walk(self._known)
        assert state is not None, "no text of the format begins like this"
        return len(self._known) + state
