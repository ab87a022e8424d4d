"""Confidence intervals for a rank that was estimated from a sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats


def weighted_count_interval(total: float, variance: float, heaviest: float, confidence: float) -> tuple[float, float]:
    """An interval for a count that was estimated as a sum of weights (Fay and Feuer, 1997).

    Each weight stands for so many things of which one was found. The sum is treated as a gamma variable of the same
    mean and variance; for the upper end one more find of the heaviest kind is added, so that an empty sum still
    tells how much may have been missed. Conservative if no find could have been heavier than `heaviest`.

    Args:
        total: The sum of the weights, or 0 if nothing was found.
        variance: The estimated variance of that sum.
        heaviest: The largest variance-carrying weight that a find could have had.
        confidence: For example 0.95.

    Example:
        >>> weighted_count_interval(0.0, 0.0, 0.0, 0.95)  # everything was certain to be found
        (0.0, 0.0)
        >>> low, high = weighted_count_interval(100.0, 100.0, 1.0, 0.95)  # a Poisson count of 100
        >>> round(low, 1), round(high, 1)
        (81.4, 121.6)
    """
    tail = (1.0 - confidence) / 2.0
    low = total if variance == 0.0 else _gamma_quantile(tail, total, variance)
    above, spread = total + heaviest, variance + heaviest**2
    high = above if spread == 0.0 else _gamma_quantile(1.0 - tail, above, spread)
    return low, high


def _gamma_quantile(probability: float, mean: float, variance: float) -> float:
    """A quantile of the gamma distribution with this mean and variance."""
    return float(stats.gamma.ppf(probability, mean**2 / variance, scale=variance / mean))


def clopper_pearson(
    hits: ArrayLike, trials: ArrayLike, confidence: ArrayLike = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact limits of a proportion, each of which holds with the given confidence by itself.

    Both together hold with a confidence of `1 - 2 (1 - confidence)`.

    Args:
        hits: How many trials succeeded; may be an array, as the others may.
        trials: How many there were.
        confidence: Of each limit.

    Example:
        >>> low, high = clopper_pearson([0, 10], 10, 0.95)
        >>> low.round(4).tolist(), high.round(4).tolist()
        ([0.0, 0.7411], [0.2589, 1.0])
    """
    hits, trials = np.asarray(hits, dtype=float), np.asarray(trials, dtype=float)
    error = 1.0 - np.asarray(confidence, dtype=float)
    misses = trials - hits
    # Where there are no hits, or only hits, the beta distribution has lost its spread; the limit is then 0, or 1.
    low = np.where(hits > 0, special.betaincinv(np.where(hits > 0, hits, 1), misses + 1, error), 0.0)
    high = np.where(misses > 0, special.betainccinv(hits + 1, np.where(misses > 0, misses, 1), error), 1.0)
    return low, high


def proportion_interval(hits: float, trials: float, confidence: float) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval for a proportion, both ends of which hold together.

    Args:
        hits: How many trials succeeded; a fraction is what an effective number of trials makes of them.
        trials: How many there were.
        confidence: Of both limits together.

    Example:
        >>> low, high = proportion_interval(0, 100, 0.95)
        >>> low, round(high, 4)
        (0.0, 0.0362)
    """
    low, high = clopper_pearson(hits, trials, 0.5 + confidence / 2.0)
    return float(low), float(high)


def clustered_interval(shares: ArrayLike, sizes: ArrayLike, confidence: float) -> tuple[float, float]:
    """An interval for a proportion that was seen in clusters, whose members may be alike (Korn and Graubard, 1998).

    Clopper-Pearson's for as many independent trials as would scatter as much as the clusters do, and never more than
    there were. Where all failed, or all succeeded, nothing tells how alike the members are: each cluster is one trial.

    Args:
        shares: What part of each cluster succeeded.
        sizes: How many trials each cluster has.
        confidence: Of both limits together.

    Example:
        >>> low, high = clustered_interval([0.2, 0.2, 0.2], 5, 0.95)  # 3 of 15
        >>> round(low, 3), round(high, 3)
        (0.043, 0.481)
        >>> low, high = clustered_interval([0.6, 0.0, 0.0], 5, 0.95)  # 3 of 15, all in one: as good as few trials
        >>> round(low, 3), round(high, 3)
        (0.0, 0.992)
    """
    sizes, shares = np.broadcast_arrays(np.asarray(sizes, dtype=float), np.asarray(shares, dtype=float))
    trials, clusters = float(sizes.sum()), len(shares)
    share = float((shares * sizes).sum()) / trials
    effective = float(clusters) if share in (0.0, 1.0) else trials
    if clusters > 1 and 0.0 < share < 1.0:
        # The variance of a ratio: clusters may differ in size.
        off = sizes * (shares - share) / trials
        variance = clusters / (clusters - 1) * float((off**2).sum())
        if variance > 0:
            # With few clusters the variance itself is uncertain; with as many as trials that is no matter.
            wider = [stats.t.ppf(0.5 + confidence / 2, degrees) for degrees in (trials - 1, clusters - 1)]
            effective = min(trials, share * (1 - share) / variance * float(wider[0] / wider[1]) ** 2)
    return proportion_interval(share * effective, effective, confidence)


def normal_margin(standard_error: float, confidence: float) -> float:
    """Half the width of a normal interval."""
    return float(stats.norm.ppf(0.5 + confidence / 2.0)) * standard_error
