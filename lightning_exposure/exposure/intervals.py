"""Confidence intervals for a rank that was estimated from a sample."""

from __future__ import annotations

from scipy import stats

from lightning_exposure.errors import ArgumentError


def check_confidence(confidence: float) -> None:
    """Refuse a confidence level that is none.

    Raises:
        ArgumentError: It does not lie strictly between 0 and 1.
    """
    if not 0.0 < confidence < 1.0:
        raise ArgumentError(f"confidence is {confidence!r}; expected a number between 0 and 1, for example 0.95.")


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


def proportion_interval(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """The exact (Clopper-Pearson) interval for a proportion.

    Example:
        >>> low, high = proportion_interval(0, 100, 0.95)
        >>> low, round(high, 4)
        (0.0, 0.0362)
    """
    result = stats.binomtest(hits, trials).proportion_ci(confidence, method="exact")
    return float(result.low), float(result.high)


def normal_margin(standard_error: float, confidence: float) -> float:
    """Half the width of a normal interval."""
    return float(stats.norm.ppf(0.5 + confidence / 2.0)) * standard_error
