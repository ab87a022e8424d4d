"""The texts of a format, character by character: what the tokens of a tree must spell.

A graph whose paths from the start to an accepting state are the secrets, with what always stands before them, such as
a chat template, in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_exposure.secrets import SecretFormat


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
        >>> texts = Texts.of(SecretFormat("pin ##"), before="> ")
        >>> texts.count(), texts.narrowed("pin 4").count()
        (100, 10)
        >>> texts.accepting[texts.after("> pin 42")]
        True
    """

    def __init__(
        self, edges: Sequence[Mapping[str, int]], accepting: Sequence[bool], start: int, before: str = ""
    ) -> None:
        self.edges = list(edges)
        self.accepting = list(accepting)
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
        return len(self.edges)

    def after(self, text: str, state: int | None = None) -> int | None:
        """The state after reading a text from a state, or from the start; None if it does not fit."""
        at: int | None = self.start if state is None else state
        for character in text:
            at = None if at is None else self.edges[at].get(character)
        return at

    @property
    def plain(self) -> Texts:
        """The texts alone, without edges for tokens that are cut out of them."""
        return self

    def characters(self, start: int) -> set[str]:
        """The characters that occur behind a state."""
        found: set[str] = set()
        seen, stack = {start}, [start]
        while stack:
            edges = self.edges[stack.pop()]
            found.update(edges)
            stack.extend(set(edges.values()) - seen)
            seen.update(edges.values())
        return found

    def narrowed(self, known: str) -> Texts:
        """Only those whose secret begins with a known text, which some of them must.

        No path comes back to a state that it has passed, so that taking away the other ways out of the states on the
        known way takes away exactly the other texts.
        """
        narrow = Texts(self.edges, self.accepting, self.start, self.before)
        state = self.start
        for character in self.before + known:
            narrow.edges[state] = {character: self.edges[state][character]}
            narrow.accepting[state] = False
            state = self.edges[state][character]
        return narrow

    def count(self) -> int:
        """How many texts there are."""
        if self.plain is not self:
            return self.plain.count()
        total = 0
        ways = {self.start: 1}  # how many beginnings of one length lead to each state
        while ways:
            total += sum(count for state, count in ways.items() if self.accepting[state])
            longer: dict[int, int] = {}
            for state, count in ways.items():
                for after in self.edges[state].values():
                    longer[after] = longer.get(after, 0) + count
            ways = longer
        return total
