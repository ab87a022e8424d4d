"""What the bounds share, and what the two rates of an attack prove about epsilon: pure functions.

Differential privacy limits how well anyone can tell from a trained model whether a record was among its training
data. So whoever guesses better than some epsilon allows has shown, up to a small probability of luck, that this epsilon
does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lightning_exposure.errors import ArgumentError

_STEPS = 40
"""Bisections: from an epsilon of 100, this many leave less than a billionth."""

_LARGEST_EXPONENT = 700.0


def group_delta(epsilon: float, delta: float, records: int) -> float:
    """What delta becomes when several records are covered at once: `delta * (1 + e^epsilon + ... )`, a term each.

    Training that is (epsilon, delta)-private for one record is (records * epsilon, this)-private for a group.

    Example:
        >>> group_delta(0.0, 1e-6, 4)
        4e-06
    """
    if records == 1 or delta == 0.0:
        return delta
    if epsilon == 0.0:
        return min(1.0, delta * records)
    if records * epsilon > _LARGEST_EXPONENT:
        return 1.0
    return min(1.0, delta * math.expm1(records * epsilon) / math.expm1(epsilon))


def rates_epsilon(tpr_low: float, fpr_high: float, *, delta: float = 0.0, records: int = 1) -> float:
    """The largest epsilon that two rates of an attack refute: the classical bound.

    An (epsilon, delta)-private training allows no attack with `tpr > e^epsilon * fpr + delta`, nor, if one guesses the
    other way round, with `1 - fpr > e^epsilon * (1 - tpr) + delta`.

    Args:
        tpr_low: A lower limit of the share of members that are called members.
        fpr_high: An upper limit of the share of others that are called members.
        delta: Of one record.
        records: How many records a member is.

    Raises:
        ArgumentError: The rates are no limits.

    Example:
        >>> round(rates_epsilon(0.8, 0.1, delta=0.01), 4)  # log(0.79 / 0.1)
        2.0669
    """
    if not (0.0 <= tpr_low < 1.0 and 0.0 < fpr_high <= 1.0):
        raise ArgumentError(
            f"tpr_low is {tpr_low!r} and fpr_high is {fpr_high!r}; expected limits that leave room, 0 <= tpr_low < 1 "
            "and 0 < fpr_high <= 1, as clopper_pearson gives them."
        )
    return max(
        0.0,
        _ratio_epsilon(tpr_low, fpr_high, delta, records),
        _ratio_epsilon(1.0 - fpr_high, 1.0 - tpr_low, delta, records),
    )


def _ratio_epsilon(rate: float, other: float, delta: float, records: int) -> float:
    if rate - delta <= other:
        return 0.0
    if records == 1:
        return math.log((rate - delta) / other)

    def refuted(epsilon: float) -> bool:
        return rate > math.exp(records * epsilon) * other + group_delta(epsilon, delta, records)

    return largest(refuted, math.log(rate / other) / records)


def largest(refuted: Callable[[float], bool], high: float) -> float:
    """The largest number up to `high` that is refuted, from below; 0 if not even 0 is."""
    low = 0.0
    if high == 0.0 or not refuted(low):
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low
