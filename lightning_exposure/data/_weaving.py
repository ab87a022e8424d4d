"""Putting extra entries into a stream at random places, without touching the stream itself.

A stream of known length gets them at places that are drawn beforehand. One of unknown length is read a little ahead:
if it ends within that, its length is known; if not, the entries go among the first that were read.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any, Final

from lightning_exposure.errors import DataError

REPEAT: Final = object()
"""An extra entry that stands for the stream's last entry once more.

Processes that train together must make equally many steps. Where one of them gets a canary less than the others, an
ordinary example is repeated, as `DistributedSampler` does; a canary never is.
"""

LOOK_AHEAD: Final = 1024
"""How many entries of a stream of unknown length are read before the first is passed on."""


def random_for(*parts: object) -> random.Random:
    """A generator of its own for every combination of seed, epoch and process."""
    return random.Random("/".join(map(str, parts)))


def share(occurrences: int, seed: object, epoch: int, slot: int, slots: int) -> list[int]:
    """Which of some occurrences belong to one of several processes, in random order.

    >>> sorted(share(5, 0, 0, 0, 2) + share(5, 0, 0, 1, 2))
    [0, 1, 2, 3, 4]
    """
    order = list(range(occurrences))
    random_for(seed, epoch).shuffle(order)
    return order[slot::slots]


def weave(
    stream: Iterable[Any],
    length: int,
    extra: Sequence[Any],
    generator: random.Random,
    *,
    batch_size: int = 1,
    offset: int = 0,
) -> Iterator[Any]:
    """A stream of known length with extra entries at random places.

    Args:
        stream: What is kept as it is, in its order.
        length: How many entries it has.
        extra: What is put in between, in this order.
        generator: Draws the places.
        batch_size: With more than 1, no extra entry is among those that are left over when batches are full.
        offset: How many entries of the first batch have been passed on before.

    >>> "".join(weave("abcdef", 6, "XY", random.Random(1)))
    'abXcYdef'
    """
    total = length + len(extra)
    usable = total - (offset + total) % batch_size
    if usable < len(extra):
        raise DataError(
            f"drop_last is True, and {length} examples and {len(extra)} canaries fill {max(usable, 0)} places in "
            f"batches of {batch_size}; expected at least as many places as canaries, or one would be dropped. Use "
            "drop_last=False, smaller batches or fewer repetitions."
        )
    places = set(generator.sample(range(usable), len(extra)))
    return _merge(iter(stream), places, iter(extra))


def _merge(stream: Iterator[Any], places: set[int], extra: Iterator[Any]) -> Iterator[Any]:
    last: Any = REPEAT
    for place in count():
        extra_here = place in places
        entry = next(extra) if extra_here else None
        if not extra_here:
            entry = last = next(stream, REPEAT)
            if entry is REPEAT:
                break
        elif entry is REPEAT:
            if last is REPEAT:  # nothing to repeat yet: take what comes next, and let it come again
                last = next(stream, REPEAT)
                stream = chain([last], stream)
            entry = last
            if entry is REPEAT:
                break
        yield entry
    # A stream that is shorter than it said must not cost a canary.
    yield from (entry for entry in extra if entry is not REPEAT)


def weave_unknown(
    stream: Iterable[Any],
    extra: Sequence[Any],
    generator: random.Random,
    *,
    hint: int | None = None,
    batch_size: int = 1,
) -> Iterator[Any]:
    """A stream whose length is not known, or only roughly, with extra entries at random places.

    Args:
        stream: What is kept as it is, in its order.
        extra: What is put in between, in this order.
        generator: Draws the places.
        hint: About how many entries the stream has; without it, it is read `LOOK_AHEAD` entries ahead.
        batch_size: With more than 1, no extra entry is among those that are left over when batches are full.

    >>> "".join(weave_unknown("abcdef", "XY", random.Random(1)))
    'aXYbcdef'
    """
    source = iter(stream)
    # One full batch ahead: when the stream ends, what is left always fills up the batch of the last extra entry.
    ahead = deque(islice(source, max(batch_size, LOOK_AHEAD if hint is None else 1)))
    waiting = deque(extra)
    spread = len(ahead) if hint is None else hint
    places = set(generator.sample(range(spread + len(waiting)), len(waiting)))
    last: Any = REPEAT
    place = 0
    for coming in source:
        # Places may follow one another; then comes the stream's next entry, and one more is read.
        while waiting and place in places and (waiting[0] is not REPEAT or last is not REPEAT):
            entry = waiting.popleft()
            yield last if entry is REPEAT else entry
            place += 1
        last = ahead.popleft()
        yield last
        place += 1
        ahead.append(coming)
    # The stream has ended, so the rest of it has a known length.
    yield from weave(ahead, len(ahead), list(waiting), generator, batch_size=batch_size, offset=place % batch_size)
