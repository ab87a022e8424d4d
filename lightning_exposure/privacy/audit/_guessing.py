"""Which guesses an audit makes: for how many of the highest scores "in", for how many of the lowest "out".

Few, sure guesses prove much about a model that gives away a few canaries and nothing of the others; many guesses prove
more about one that gives away something of all. Nobody knows beforehand which it will be, so several numbers are tried,
and all of it is fixed before a score is seen: by the number of canaries, the probability of error and delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SMALLEST = 8
"""Fewer guesses than this prove next to nothing, even if every one of them is right."""
_GROWTH = 1.25
"""By how much a stage is larger than the one before it. Stages that are closer cost more time, and prove no more."""
_ONE_SIDED = 0.2
"""The share of the error for guesses "in" alone: for models that remember a few canaries, and forget none."""
_FOR_DELTA = 0.15
"""About how much of the error may be spent on what delta could lay open."""
_APART = (0.49, 0.33, 0.15)
"""How many canaries single tests call in, and as many out, if delta is too large for stages."""
_ALONE = 0.4
"""The same for one test, if delta is too large for three."""


@dataclass(frozen=True)
class GuessingTest:
    """Guesses about the canaries with the highest scores, and maybe as many with the lowest, in growing stages.

    Attributes:
        sizes: How many guesses there are on a side, stage by stage: each contains the one before it.
        sides: 2: the highest scores are called in, the lowest out; 1: the highest are called in.
        error: The probability of error that the test may use.
    """

    sizes: tuple[int, ...]
    sides: int
    error: float

    @property
    def guesses(self) -> tuple[int, ...]:
        """How many guesses each stage makes."""
        return tuple(self.sides * size for size in self.sizes)

    def correct(self, called_in: NDArray[np.int64], called_out: NDArray[np.int64]) -> tuple[int, ...]:
        """How many of them are right, from what `right_guesses` gave."""
        if self.sides == 1:
            return tuple(int(called_in[size]) for size in self.sizes)
        return tuple(int(called_in[size] + called_out[size]) for size in self.sizes)


def plan(canaries: int, error: float, delta: float = 0.0) -> tuple[GuessingTest, ...]:
    """The tests that together prove most, as far as that can be said before any score is seen.

    What delta may lay open costs more, the smaller the stages are (`staged_p_value`). So stages are at least so large
    that it costs little; if even the whole is too small for stages, there are three tests apart, and if it is too small
    for those, one.

    Args:
        canaries: How many coins were tossed.
        error: The probability of error of all tests together.
        delta: What the training is granted, for all the records of a canary.

    Example:
        >>> [(test.sizes, test.sides, round(test.error, 3)) for test in plan(40, 0.05)]
        [((4, 5, 7, 9, 12, 15, 16), 2, 0.04), ((8, 10, 13, 16), 1, 0.01)]
        >>> [(test.sizes, test.sides, round(test.error, 3)) for test in plan(400, 0.05, delta=1e-2)]
        [((160,), 2, 0.05)]
    """
    # Less than all: a gap in the middle, three standard deviations of the number of members wide. Only then is it
    # likely that members that are well apart make no wrong guess necessary.
    side = max(0, math.ceil(canaries / 2 - 0.75 * math.sqrt(canaries)))
    if side == 0:
        return (GuessingTest((0,), 2, error),)
    # With n guesses in a block delta costs about `canaries * delta * 0.4 / sqrt(n)`.
    block = math.ceil((0.4 * canaries * delta / (_FOR_DELTA * error)) ** 2)
    if block <= canaries // 8:
        first, apart = max(_SMALLEST, block), max(1, block)
        both = _stages(side, math.ceil(first / 2), math.ceil(apart / 2))
        return (
            GuessingTest(both, 2, (1.0 - _ONE_SIDED) * error),
            GuessingTest(_stages(side, first, apart), 1, _ONE_SIDED * error),
        )
    if delta / min(_APART) <= 0.4 * error / len(_APART):  # about what it costs the smallest of them
        sizes = sorted({max(1, min(side, int(canaries * share))) for share in _APART})
        return tuple(GuessingTest((size,), 2, error / len(sizes)) for size in sizes)
    return (GuessingTest((max(1, min(side, int(canaries * _ALONE))),), 2, error),)


def gaussian_plan(canaries: int, error: float) -> tuple[GuessingTest, ...]:
    """The tests of the Gaussian bound, which knows no stages: a few numbers of guesses, each a test apart.

    On scores that are shifted by 0.5 to 4 standard deviations, one of the first two is close to the best number there
    is, for 400 canaries as for 2,000.

    Example:
        >>> [(test.sizes, test.sides, round(test.error, 3)) for test in gaussian_plan(400, 0.05)]
        [((48,), 2, 0.02), ((128,), 2, 0.02), ((40,), 1, 0.01)]
    """
    shares = (0.12, 2, 0.4), (0.32, 2, 0.4), (0.1, 1, 0.2)
    return tuple(GuessingTest((int(canaries * share),), sides, part * error) for share, sides, part in shares)


def _stages(side: int, first: int, apart: int) -> tuple[int, ...]:
    """Growing sizes up to `side`, from `first` on, at least so far apart."""
    sizes: list[int] = []
    size = first
    while size <= side - apart:
        sizes.append(size)
        size = max(math.ceil(_GROWTH * size), size + apart)
    return (*sizes, side)


def right_guesses(
    scores_in: NDArray[np.float64], scores_out: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many guesses are right if the n highest scores are called in, and the n lowest out, for every n.

    Equal scores can be put in any order that does not depend on who is in; the count is that of the worst order.

    Example:
        >>> called_in, called_out = right_guesses(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
        >>> called_in.tolist(), called_out.tolist()
        ([0, 1, 1, 2, 2], [0, 1, 1, 2, 2])
    """
    scores = np.concatenate([scores_in, scores_out])
    members = np.arange(len(scores)) < len(scores_in)
    downward = members[np.lexsort((members, -scores))]
    upward = members[np.lexsort((~members, scores))]
    return _running_total(downward), _running_total(~upward)


def _running_total(right: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.concatenate([[0], right.cumsum()]).astype(np.int64)
