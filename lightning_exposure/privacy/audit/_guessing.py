"""Which guesses an audit makes: how many "in" and how many "out", fixed before a score is seen.

Few, sure guesses prove much about a model that gives away a few canaries and nothing of the others; many guesses prove
more about one that gives away something of all. Nobody knows beforehand which it will be, so several numbers are tried.
Whoever tries often is lucky more easily: the probability of error is divided (Bonferroni), one half for the first try,
which is the best one if members and others are well apart, and one half for all the others.

Splitting the canaries, to choose on one half and to test on the other, was measured too: on randomized response, and on
scores that are well apart, it proves less at every number of canaries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAST = 1.0 / (1.0 + math.exp(-0.5))
"""How often a guess is right under the smallest epsilon that a try must be able to refute, one half."""


@dataclass(frozen=True)
class Try:
    """One of the tries.

    Attributes:
        called_in: For so many of the highest scores the guess is "in".
        called_out: For so many of the lowest scores the guess is "out".
    """

    called_in: int
    called_out: int

    @property
    def guesses(self) -> int:
        """How many guesses it makes; there is none for the canaries in between."""
        return self.called_in + self.called_out


@dataclass(frozen=True)
class Plan:
    """All the tries.

    Attributes:
        first: Guesses most, and may use one half of the probability of error; all of it if it is alone.
        others: The rest, which share the other half.
        error: The probability of error of all tries together.
    """

    first: Try
    others: tuple[Try, ...]
    error: float

    @property
    def tries(self) -> tuple[Try, ...]:
        """The first and the others."""
        return self.first, *self.others

    @property
    def share(self) -> float:
        """The probability of error of the first try."""
        return self.error / 2 if self.others else self.error


def plan(canaries: int, error: float) -> Plan:
    """The tries for a number of canaries.

    The first one guesses on both sides and leaves out the middle, three standard deviations of the number of
    members wide: only with so much room is it likely that members that are well apart make no wrong guess necessary.
    The others guess on one side only, or half as often, and so on. Those that could prove next to nothing, even if
    every guess were right, are not made.

    Args:
        canaries: How many there are.
        error: The probability of error of all tries together.

    Example:
        >>> [(a.called_in, a.called_out) for a in plan(40, 0.05).tries]
        [(16, 16), (16, 0), (0, 16), (8, 8)]
    """
    side = max(0, math.ceil(canaries / 2 - 0.75 * math.sqrt(canaries)))
    pairs = []
    size = side
    while size:
        pairs += [(size, size), (size, 0), (0, size)]
        size //= 2
    first, *others = pairs or [(0, 0)]
    others.sort(key=sum, reverse=True)
    while others and _LEAST ** sum(others[-1]) > error / 2 / len(others):
        others.pop()
    return Plan(Try(*first), tuple(Try(*pair) for pair in others), error)


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
