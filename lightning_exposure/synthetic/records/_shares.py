"""Shares, their differences and means, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lightning_exposure._checks import check_confidence
from lightning_exposure.errors import ScoreError
from lightning_exposure.exposure.intervals import proportion_interval


@dataclass(frozen=True)
class Estimate:
    """A number with an interval.

    Attributes:
        value: The number.
        low: The lower end.
        high: The upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def share(hits: int, trials: int, confidence: float = 0.95) -> Estimate:
    """A share, with its exact (Clopper-Pearson) interval.

    Example:
        >>> print(share(9, 10))
        0.900 [0.555, 0.997]
    """
    _check(hits, trials)
    return Estimate(hits / trials, *proportion_interval(hits, trials, check_confidence(confidence)))


def privacy_loss(p: Estimate) -> Estimate:
    """How far a share is above a coin's: (P - 0.5) / 0.5, between -1 and 1.

    Example:
        >>> print(privacy_loss(Estimate(0.75, 0.5, 1.0)))
        0.500 [0.000, 1.000]
    """
    return Estimate(*((number - 0.5) / 0.5 for number in (p.value, p.low, p.high)))


def share_difference(hits: int, trials: int, other_hits: int, other_trials: int, confidence: float = 0.95) -> Estimate:
    """The difference of two shares of different records.

    The interval is Newcombe's: how far each share may be off, by its exact interval, added as squares. Counted over all
    outcomes, it holds the difference of two *equal* shares at least as often as stated, however few records there are
    (the tests count it). For shares at opposite ends it may fall short of it where one of the groups has fewer than 20
    records: in 93 cases of 100 in the place of 95 with five records each.

    Example:
        >>> print(share_difference(90, 100, 60, 100))
        0.300 [0.177, 0.415]
    """
    one, other = share(hits, trials, confidence), share(other_hits, other_trials, confidence)
    difference = one.value - other.value
    below = math.hypot(one.value - one.low, other.high - other.value)
    above = math.hypot(one.high - one.value, other.value - other.low)
    return Estimate(difference, difference - below, difference + above)


def mean_over_seeds(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The mean of what several seeds gave, with Student's interval.

    Example:
        >>> print(mean_over_seeds([0.1, 0.2, 0.3]))
        0.200 [-0.048, 0.448]
    """
    check_confidence(confidence)
    found = np.asarray(values, dtype=np.float64)
    if len(found) < 2:
        raise ScoreError(f"values has {len(found)} numbers; expected at least two, one for each seed. Use more seeds.")
    error = float(found.std(ddof=1)) / math.sqrt(len(found))
    margin = float(stats.t.ppf(0.5 + confidence / 2, len(found) - 1)) * error
    mean = float(found.mean())
    return Estimate(mean, mean - margin, mean + margin)


def _check(hits: int, trials: int) -> None:
    if trials < 1 or not 0 <= hits <= trials:
        raise ScoreError(f"hits is {hits}; expected a number from 0 to that of the records, {trials}, which is not 0.")
