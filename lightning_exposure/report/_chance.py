"""What luck alone would show, and how far a few canaries carry: the numbers that a result is to be read against.

A canary that is drawn at random and never trained on has any rank with equal probability, whatever the model: so b bits
of exposure or more with a probability of at most 2**-b. Everything here follows from that, or from a count.
"""

from __future__ import annotations

import math

from lightning_exposure._checks import check_confidence, number, whole_number


def luckiest_bits(count: int, alpha: float = 0.05) -> float:
    """The exposure that the luckiest of some canaries exceeds with a small probability, if none of them was trained on.

    Args:
        count: How many canaries.
        alpha: The probability.

    Example:
        >>> round(luckiest_bits(1), 2), round(luckiest_bits(100), 2)
        (4.32, 10.97)
    """
    whole_number("count", count, at_least=1)
    return math.log2(count / number("alpha", alpha, above=0, below=1))


def expected_luckiest_bits(count: int) -> float:
    """The exposure that the luckiest of some canaries shows on average at most, if none of them was trained on.

    Exposures are then at most exponentially distributed, one bit halving what is left; the largest of n of them is the
    n-th harmonic number over ln 2 on average.

    Example:
        >>> round(expected_luckiest_bits(1), 2), round(expected_luckiest_bits(100), 2)
        (1.44, 7.48)
    """
    whole_number("count", count, at_least=1)
    return math.fsum(1 / place for place in range(1, count + 1)) / math.log(2)


def share_not_ruled_out(count: int, confidence: float = 0.95) -> float:
    """The largest share of all secrets of a kind that may be found, if none of some drawn at random was.

    Example:
        >>> round(share_not_ruled_out(3), 3), round(share_not_ruled_out(59), 3)
        (0.632, 0.05)
    """
    whole_number("count", count, at_least=1)
    check_confidence(confidence)
    return float(1 - (1 - confidence) ** (1 / count))


def of_a_group(epsilon: float, delta: float, records: int) -> tuple[float, float]:
    """What a promise for one record is for several at once: epsilon and delta; a delta of 1 promises nothing.

    Example:
        >>> of_a_group(1.0, 1e-6, 1)
        (1.0, 1e-06)
        >>> tuple(round(value, 6) for value in of_a_group(1.0, 1e-6, 4))
        (4.0, 3.1e-05)
    """
    whole_number("records", records, at_least=1)
    together = records * epsilon
    if together == 0:
        return 0.0, min(1.0, records * delta)
    if together > 700:  # beyond what an exponential can be
        return together, 1.0 if delta else 0.0
    return together, min(1.0, delta * math.expm1(together) / math.expm1(epsilon))
