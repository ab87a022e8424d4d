"""Deciding whether a text of a format can be read in two ways.

Two fillings with the same text are two walks of the format's `Reader` that read the same characters. So it
is enough to walk both at once: over *pairs* of states, of which there are few, and not over the secrets, of
which there may be 10^40. The shortest walk to a pair that accepts, after the two have parted, is the shortest
witness.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from lightning_exposure.secrets.formats._reading import Reader, State


class _Twofold(NamedTuple):
    """Two readings of the same characters, and whether they have ever differed."""

    one: State
    other: State
    parted: bool


class Witness(NamedTuple):
    """A text and, for each of two readings, the slot that every character belongs to."""

    text: str
    slots: tuple[list[int], list[int]]


def find_ambiguity(reader: Reader) -> Witness | None:
    """Return a shortest text that can be read in two ways, or None if there is no such text."""
    start = _Twofold(reader.start, reader.start, False)
    came_from: dict[_Twofold, tuple[_Twofold, str]] = {}
    queue = deque([start])
    while queue:
        pair = queue.popleft()
        if pair.parted and reader.accepts(pair.one) and reader.accepts(pair.other):
            return _retrace(pair, start, came_from)
        for character, after in _steps(reader, pair):
            if after not in came_from:
                came_from[after] = (pair, character)
                queue.append(after)
    return None


def _steps(reader: Reader, pair: _Twofold) -> Iterator[tuple[str, _Twofold]]:
    others = reader.steps(pair.other)
    for character, ones in reader.steps(pair.one).items():
        if pair.one != pair.other:
            for one in ones:
                for other in others.get(character, ()):
                    yield character, _Twofold(one, other, True)
            continue
        for place, one in enumerate(ones):
            yield character, _Twofold(one, one, pair.parted)
            # Which of the two readings is called `one` does not matter: half of the pairs will do. Readings
            # that met again after they parted are a witness already, and need not part a second time.
            if not pair.parted:
                for other in ones[place + 1 :]:
                    yield character, _Twofold(one, other, True)


def _retrace(pair: _Twofold, start: _Twofold, came_from: dict[_Twofold, tuple[_Twofold, str]]) -> Witness:
    characters: list[str] = []
    slots: tuple[list[int], list[int]] = ([], [])
    while pair != start:
        before, character = came_from[pair]
        characters.append(character)
        slots[0].append(pair.one.slot)
        slots[1].append(pair.other.slot)
        pair = before
    return Witness("".join(reversed(characters)), (slots[0][::-1], slots[1][::-1]))
