"""Drawing distinct numbers below a bound of any size, uniformly and in random order."""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np

from lightning_exposure._checks import whole_number
from lightning_exposure.errors import ArgumentError

Seed = int | random.Random | np.random.Generator
"""Where randomness comes from: a number, or a generator that is used and moved on."""


def generator_from(seed: Seed) -> random.Random:
    """Return a source of random integers of any size; the global generators are never touched.

    >>> generator_from(0).randrange(10**40) == generator_from(0).randrange(10**40)
    True
    """
    if isinstance(seed, random.Random):
        return seed
    if isinstance(seed, np.random.Generator):
        return random.Random(int.from_bytes(seed.bytes(32), "little"))
    try:
        # Python ignores the sign of a seed, so that -1 and 1 would silently give the same numbers.
        return random.Random(whole_number("seed", seed, at_least=0))
    except ArgumentError as error:
        raise ArgumentError(f"{error} A random.Random or a numpy.random.Generator is accepted too.") from None


def distinct_integers(
    count: int, below: int, generator: random.Random, exclude: Collection[int] = frozenset()
) -> list[int]:
    """Draw `count` different integers from ``range(below)``, none of them in `exclude`, in random order.

    This is the shuffle of Fisher and Yates on a list that is never made: only the places where it differs
    from ``list(range(below))`` are kept. Time and memory grow with `count` and `exclude`, not with `below`.

    >>> sorted(distinct_integers(3, 5, random.Random(0), exclude={1, 4}))
    [0, 2, 3]
    """
    excluded = set(exclude)
    left = below - len(excluded)
    # Move the excluded integers past the part that is shuffled. In sorted order, for the outcome must not
    # depend on the order in which a set happens to list them.
    spare = (number for number in range(left, below) if number not in excluded)
    moved = {number: next(spare) for number in sorted(excluded) if number < left}
    drawn = []
    for place in range(count):
        chosen = generator.randrange(place, left)
        drawn.append(moved.get(chosen, chosen))
        displaced = moved.pop(place, place)
        if chosen != place:
            moved[chosen] = displaced
    return drawn
