"""Numbering the texts of an acceptor in alphabetical order, by counting the ways from each state to an end.

Every format can be numbered like this, whatever made its acceptor. Patterns do without: their blanks are digits of a
number already, and word lists keep the order in which they were given.
"""

from __future__ import annotations

from collections import deque

from lightning_exposure.secrets.formats.acceptor import Acceptor


class Counting:
    """A bijection between ``range(size)`` and the texts of an acceptor without cycles.

    >>> from lightning_exposure.secrets import SecretFormat
    >>> counting = Counting(SecretFormat("pin ##").acceptor())
    >>> counting.size, counting.text_of(42), counting.number_of("pin 42")
    (100, 'pin 42', 42)
    """

    def __init__(self, acceptor: Acceptor) -> None:
        """Count the texts behind every state."""
        self._edges = [sorted(acceptor.edges(state).items()) for state in range(len(acceptor))]
        self._accepting = [acceptor.accepting(state) for state in range(len(acceptor))]
        self._ways = self._count()
        self.size = self._ways[acceptor.start]
        """How many texts there are."""

    def text_of(self, number: int) -> str:
        """Return the text of a number, which must be in ``range(size)``."""
        characters: list[str] = []
        state = 0
        while True:
            if self._accepting[state]:
                if number == 0:
                    return "".join(characters)
                number -= 1
            for character, target in self._edges[state]:
                if number < self._ways[target]:
                    characters.append(character)
                    state = target
                    break
                number -= self._ways[target]

    def number_of(self, text: str) -> int:
        """Return the number of a text, which must be one of the acceptor's."""
        number = state = 0
        for wanted in text:
            number += self._accepting[state]
            for character, target in self._edges[state]:
                if character == wanted:
                    state = target
                    break
                number += self._ways[target]
        return number

    def covering(self) -> list[str]:
        """Return a few texts that together go over every edge, and end wherever a text may end."""
        to, onward = self._ways_to(), self._ways_onward()
        fresh = [[character for character, _ in edges] for edges in self._edges]
        ends = {state for state, accepting in enumerate(self._accepting) if accepting}
        found = []
        for state in range(len(self._edges)):
            while fresh[state] or state in ends:
                found.append(self._go_over(state, to[state], fresh, ends, onward))
        return found

    def _go_over(self, state: int, text: str, fresh: list[list[str]], ends: set[int], onward: list[str | None]) -> str:
        """A text that goes on with edges no text has gone over, as long as there are any."""
        following = dict(self._edges[state])
        while True:
            if fresh[state]:
                character: str | None = fresh[state].pop(0)
            elif state in ends:
                ends.discard(state)
                return text
            else:
                character = onward[state]
                if character is None:
                    return text
            assert character is not None
            text, state = text + character, following[character]
            following = dict(self._edges[state])

    def _ways_to(self) -> list[str]:
        """A shortest text that leads to each state."""
        found = {0: ""}
        queue = deque([0])
        while queue:
            state = queue.popleft()
            for character, target in self._edges[state]:
                if target not in found:
                    found[target] = found[state] + character
                    queue.append(target)
        return [found[state] for state in range(len(self._edges))]

    def _ways_onward(self) -> list[str | None]:
        """The edge that leads on from each state, the same whenever it is passed; None where a text may end."""
        return [
            None if accepting else edges[0][0] for accepting, edges in zip(self._accepting, self._edges, strict=True)
        ]

    def _count(self) -> list[int]:
        """How many texts lead from each state to an end; each state is looked at when those behind it are known."""
        ways: dict[int, int] = {}
        stack = [0]
        while stack:
            missing = [target for _, target in self._edges[stack[-1]] if target not in ways]
            if missing:
                stack.extend(missing)
                continue
            state = stack.pop()
            ways[state] = self._accepting[state] + sum(ways[target] for _, target in self._edges[state])
        return [ways[state] for state in range(len(self._edges))]
