"""How often a private training run may be refused by mistake, and who gets how much of that.

Many tests look at a training run, most of them many times. Each has a share of the error, and each look a share of its
test's: the k-th one in k(k+1), which adds up to 1 however long the training is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

FALSE_ALARM = 1e-6
"""How likely a private training run is refused by mistake, over all tests and all their looks."""

STOPPED = "The training was stopped, because it would not have been private."


class ErrorBudget:
    """Shares an error among tests, and among the looks of each.

    Args:
        weights: The names of all tests, each with its share of the whole in parts.
        error: How likely any of them raises a false alarm, ever.

    Example:
        >>> budget = ErrorBudget({"mean": 1, "size": 3}, error=0.08)
        >>> [round(budget.next_share("mean"), 4) for _ in range(3)]
        [0.01, 0.0033, 0.0017]
    """

    def __init__(self, weights: Mapping[str, float], error: float = FALSE_ALARM) -> None:
        total = sum(weights.values())
        self._shares = {test: error * weight / total for test, weight in weights.items()}
        self._looks = dict.fromkeys(weights, 0)

    def next_share(self, test: str) -> float:
        """The error that the next look of a test may make."""
        self._looks[test] += 1
        look = self._looks[test]
        return self._shares[test] / (look * (look + 1))


def is_time_to_look(steps: int) -> bool:
    """Whether tests over all steps so far look after this one: at 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 and so on.

    Rarely enough for the looks to cost little of the error, often enough to see early what is wrong.

    >>> [steps for steps in range(1, 100) if is_time_to_look(steps)]
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
    """
    power = 1 << (steps.bit_length() - 1)
    return steps in (power, power + power // 2)


# ---- p-values, two-sided and exact ------------------------------------------------------------------------------


def of_normal(value: float) -> float:
    """How likely a standard normal number is as far from 0 as this.

    >>> round(of_normal(1.96), 3)
    0.05
    """
    return float(special.erfc(abs(value) / math.sqrt(2)))


def of_squares(total: float, count: int) -> float:
    """How likely the sum of squares of standard normal numbers is as far out as this, to its side, twice.

    >>> round(of_squares(10.0, 10), 1), of_squares(10.0, 1000) < 1e-9
    (0.9, True)
    """
    return min(1.0, 2 * min(float(special.chdtr(count, total)), float(special.chdtrc(count, total))))


class NormalTotals:
    """Numbers that should be standard normal: their sum, and that of their squares.

    Example:
        >>> totals = NormalTotals()
        >>> for value in (0.5, -1.2, 0.3):
        ...     totals.add(value)
        >>> totals.probability() > 0.1
        True
    """

    def __init__(self) -> None:
        self._squares, self._sum, self._count = 0.0, 0.0, 0

    def add(self, value: float) -> None:
        """Take a number in."""
        self._squares, self._sum, self._count = self._squares + value**2, self._sum + value, self._count + 1

    def probability(self) -> float:
        """How likely one of the two totals is as far out as the one further out; 1 without numbers."""
        if not self._count:
            return 1.0
        sides = (of_squares(self._squares, self._count), of_normal(self._sum / math.sqrt(self._count)))
        return min(1.0, 2 * min(sides))


def of_counts(seen: NDArray[np.int64], trials: int, rates: NDArray[np.float64]) -> float:
    """How likely one of several binomial counts is as far out as the one furthest out; for as many as there are.

    >>> rates = np.array([0.5, 0.1])
    >>> of_counts(np.array([50, 10]), 100, rates), of_counts(np.array([50, 60]), 100, rates) < 1e-9
    (1.0, True)
    """
    below = stats.binom.cdf(seen, trials, rates)
    above = stats.binom.sf(seen - 1, trials, rates)
    return float(min(1.0, 2 * len(seen) * np.minimum(below, above).min()))


def as_normal(seen: int, trials: int, rate: float, luck: float) -> float:
    """A binomial count as a standard normal number: small counts far below 0, large ones far above.

    Exactly normal if `luck` is uniform between 0 and 1: it chooses a place within the probability of the count itself.

    >>> abs(as_normal(50, 100, 0.5, 0.5)) < 1e-9, as_normal(90, 100, 0.5, 0.5) > 7
    (True, True)
    """
    at = float(stats.binom.pmf(seen, trials, rate))
    below = float(stats.binom.cdf(seen - 1, trials, rate))
    above = float(stats.binom.sf(seen, trials, rate))
    # From the nearer end: a probability close to 1 has lost its digits.
    low, high = special.ndtri(below + luck * at), -special.ndtri(above + (1 - luck) * at)
    return max(-38.0, min(38.0, float(low if below < above else high)))
