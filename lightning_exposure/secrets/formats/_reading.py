"""All the ways to read a text as a secret of a format, one character at a time.

A `Reader` is a nondeterministic acceptor. Its state says which slot the last character belongs to, how far
into the words of that slot it is, and the checksum so far. For a given text, the ways to fill in the blanks
correspond one to one to the ways to walk from `start` to an accepting state: the sequence of slots says which
characters fill which blank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from lightning_exposure.errors import SecretError
from lightning_exposure.secrets.formats._checksum import luhn_term
from lightning_exposure.secrets.formats.pattern import Slot


class State(NamedTuple):
    """A place in the reading of a text."""

    slot: int
    node: int
    residue: int


class WordGraph(NamedTuple):
    """The words of a slot as a minimal graph: shared beginnings and shared endings are stored once."""

    root: int
    edges: tuple[Mapping[str, int], ...]
    complete: tuple[bool, ...]


@lru_cache(maxsize=256)
def word_graph(words: tuple[str, ...]) -> WordGraph:
    """Build the graph of some words.

    >>> len(word_graph(("cat", "rat")).edges)  # the ending "at" is shared
    4
    """
    children: list[dict[str, int]] = [{}]
    ends = {0} if "" in words else set()
    for word in words:
        node = 0
        for character in word:
            if character not in children[node]:
                children[node][character] = len(children)
                children.append({})
            node = children[node][character]
        ends.add(node)
    # A child is always made after its parent, so going backwards every child has been merged already.
    merged: dict[int, int] = {}
    known: dict[tuple[bool, tuple[tuple[str, int], ...]], int] = {}
    for node in reversed(range(len(children))):
        edges = tuple(sorted((character, merged[child]) for character, child in children[node].items()))
        merged[node] = known.setdefault((node in ends, edges), len(known))
    return WordGraph(merged[0], tuple(dict(edges) for _, edges in known), tuple(complete for complete, _ in known))


class Reader:
    """Reads texts of a sequence of slots; see the module's description."""

    def __init__(self, slots: Sequence[Slot], *, luhn: bool = False) -> None:
        """Prepare to read `slots`; with `luhn`, the digit blanks must make a valid Luhn number."""
        self._graphs = [word_graph(slot.choices) for slot in slots]
        digits = [place for place, slot in enumerate(slots) if slot.kind == "digit"] if luhn else []
        self._digits_after = {place: len(digits) - 1 - rank for rank, place in enumerate(digits)}
        self._steps: dict[State, dict[str, tuple[State, ...]]] = {}
        self.start = self._enter(0, 0)

    def _enter(self, slot: int, residue: int) -> State:
        return State(slot, self._graphs[slot].root if slot < len(self._graphs) else 0, residue)

    def _without_reading(self, state: State) -> Iterator[State]:
        """Yield `state` and the states after it that need no further character."""
        yield state
        while state.slot < len(self._graphs) and self._graphs[state.slot].complete[state.node]:
            state = self._enter(state.slot + 1, state.residue)
            yield state

    def accepts(self, state: State) -> bool:
        """Whether the text may end here."""
        return any(reached.slot == len(self._graphs) for reached in self._without_reading(state))

    def steps(self, state: State) -> Mapping[str, tuple[State, ...]]:
        """Return the characters that can follow, and for each the states after it."""
        if state not in self._steps:
            found: dict[str, list[State]] = {}
            for slot, node, residue in self._without_reading(state):
                if slot == len(self._graphs):
                    continue
                for character, child in self._graphs[slot].edges[node].items():
                    after = self._residue(slot, character, residue)
                    if after is not None:
                        found.setdefault(character, []).append(State(slot, child, after))
            self._steps[state] = {character: tuple(states) for character, states in found.items()}
        return self._steps[state]

    def _residue(self, slot: int, character: str, residue: int) -> int | None:
        """Return the checksum after a character, or None if it is the check digit and a wrong one."""
        digits_after = self._digits_after.get(slot)
        if digits_after is None:
            return residue
        residue = (residue + luhn_term(int(character), digits_after)) % 10
        return None if digits_after == 0 and residue else residue

    def slots_of(self, text: str) -> list[int]:
        """Return for every character of `text` the slot it belongs to; SecretError if the text does not fit.

        Only meaningful for slots that are not ambiguous: then no state is ever reached in two ways.
        """
        came_from: list[dict[State, State]] = [{self.start: self.start}]
        for character in text:
            reached = {after: before for before in came_from[-1] for after in self.steps(before).get(character, ())}
            if not reached:
                raise SecretError("text does not fit")
            came_from.append(reached)
        state = next((state for state in came_from[-1] if self.accepts(state)), None)
        if state is None:
            raise SecretError("text does not fit")
        slots = []
        for layer in reversed(came_from[1:]):
            slots.append(state.slot)
            state = layer[state]
        return slots[::-1]
