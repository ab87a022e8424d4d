"""What a number of right guesses proves about epsilon: pure functions.

Differential privacy limits how well anyone can tell from a trained model whether a record was among its training
data. So whoever guesses better than some epsilon allows has shown, up to a small probability of luck, that this epsilon
does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lightning_exposure._checks import check_confidence, check_delta, number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure.intervals import clopper_pearson

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


def one_run_p_value(correct: int, guesses: int, epsilon: float, delta: float, canaries: int) -> float:
    """How likely so many right guesses are at best, if a training run were (epsilon, delta)-private.

    This is the test of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (2023), theorem 5.2.
    Each of `canaries` records was put into the training data or left out by a fair coin of its own. Someone who sees
    only what the training gave says "in" or "out" for `guesses` of them and is right `correct` times.

    With delta 0, what was learned shifts the odds of one coin at most by a factor of `e^epsilon`, whatever the other
    coins show: a guess is right with probability at most `q = e^epsilon / (1 + e^epsilon)`, and the number of right
    ones is no larger than a binomial W of `guesses` trials with that q. A delta above 0 lets some guesses be right for
    free, `2 * canaries * delta` of them on average. Whoever spends that average best gives i free guesses with
    probability `2 * canaries * delta / i`, for the i that helps most. Together:

        P[W >= correct] + 2 * canaries * delta * max over i of P[correct > W >= correct - i] / i

    Canaries may influence one another as they like; no assumption is made about the model.

    Args:
        correct: How many guesses were right.
        guesses: How many were made; fixed before anything was seen, or it must not depend on who was in.
        epsilon: What is doubted.
        delta: What is granted.
        canaries: How many coins were tossed, also those that no guess was made for.

    Raises:
        ArgumentError: A number is out of its range.

    Example:
        >>> round(one_run_p_value(10, 10, epsilon=0.0, delta=0.0, canaries=10) * 1024, 6)
        1.0
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ArgumentError(
            f"correct is {correct}, guesses is {guesses} and canaries is {canaries}; expected 0 <= correct <= guesses "
            "<= canaries."
        )
    check_delta(delta, pure=True)
    number("epsilon", epsilon, at_least=0)
    return _p_value(correct, guesses, epsilon, delta, canaries)


def _p_value(correct: int, guesses: int, epsilon: float, delta: float, canaries: int) -> float:
    if delta >= 1.0:
        return 1.0  # everything is private then
    luck = float(_at_least(correct, guesses, epsilon))
    if delta > 0.0 and correct > 0:
        fewer = np.arange(1, correct + 1)
        between = _at_least(correct - fewer, guesses, epsilon) - luck
        luck += 2.0 * canaries * delta * float((between / fewer).max())
    return min(1.0, luck)


def _at_least(correct: ArrayLike, guesses: ArrayLike, epsilon: float) -> NDArray[np.float64]:
    """The probability of so many right guesses, if each is as likely to be right as an epsilon allows."""
    needed = np.asarray(correct, dtype=float)
    spare = np.asarray(guesses, dtype=float) - needed
    # A tail of the binomial is an incomplete beta function.
    tail = special.betainc(np.maximum(needed, 1.0), spare + 1.0, float(special.expit(epsilon)))
    return np.where(needed > 0, tail, 1.0)


def one_run_epsilon(
    correct: int,
    guesses: int,
    *,
    delta: float = 0.0,
    canaries: int | None = None,
    confidence: float = 0.95,
    records: int = 1,
) -> float:
    """The largest epsilon that so many right guesses refute: a lower bound on the true one, 0 if they refute none.

    With delta 0 it is the logit of the lower Clopper-Pearson limit of the share of right guesses.

    Args:
        correct: As for `one_run_p_value`, as `guesses`, `delta` and `canaries` are.
        guesses: How many guesses were made.
        delta: Of one record.
        canaries: How many coins were tossed; None: as many as there were guesses.
        confidence: The bound is too high with a probability of at most `1 - confidence`.
        records: How many records of the training data a canary is. The bound is for one record: what is refuted is
            the privacy that it gives to a group of so many.

    Example:
        >>> round(one_run_epsilon(100, 100), 3)  # logit(0.05 ** (1 / 100))
        3.493
        >>> round(one_run_epsilon(75, 100, canaries=1000, delta=1e-4), 3)
        0.673
    """
    check_confidence(confidence)
    canaries = guesses if canaries is None else canaries
    one_run_p_value(correct, guesses, 0.0, delta, canaries)  # checks the arguments
    error = 1.0 - confidence
    low = float(clopper_pearson(correct, guesses, confidence)[0]) if guesses else 0.0
    without_delta = max(0.0, float(special.logit(low))) / records
    if delta == 0.0:
        return without_delta

    def refuted(epsilon: float) -> bool:
        there = group_delta(epsilon, delta, records)
        return _p_value(correct, guesses, records * epsilon, there, canaries) <= error

    return _largest(refuted, without_delta)


def tries_p_value(
    correct: ArrayLike, guesses: ArrayLike, epsilon: float, delta: float, canaries: int, *, forgiven: int = 0
) -> float:
    """How likely so many right guesses in one of several tries are at best; delta is granted once for all of them.

    Adding up `one_run_p_value` for the tries would grant it to each of them anew. But what delta buys are canaries that
    the training lays open, whoever guesses. Go through the canaries one by one. Given the outcome of the training and
    the coins before, the next guess is right with a probability that may exceed q by some excess. Then it is no better
    than a guess that is right for free with probability `excess / (1 - q)`, and with probability q otherwise. Let p and
    p' be the densities of an outcome with this canary in and out. Over all outcomes, the excess of guesses "in" is on
    average `(1 - q) / 2` times the integral of `max(0, p - e^epsilon * p')`, which is at most delta, and that of
    guesses "out" likewise. So a guess is free with probability at most delta, and on average `canaries * delta` of them
    are. More than `forgiven` are with a probability of at most `canaries * delta / (forgiven + 1)` (Markov). If no more
    are, every try has at most so many right guesses above those of independent ones with probability q. Together, with
    W the binomial of a try:

        tries * min over the tries of P[W >= correct - forgiven] + canaries * delta / (forgiven + 1)

    Args:
        correct: How many guesses were right, for each try. A canary that is in several tries has the same guess in all.
        guesses: How many were made.
        epsilon: What is doubted.
        delta: What is granted.
        canaries: How many coins were tossed.
        forgiven: How many free guesses the tries allow for; fixed before anything was seen.

    Example:
        >>> tries_p_value([10, 5], [10, 5], epsilon=0.0, delta=0.0, canaries=10) == 2 * 2**-10
        True
    """
    luck = np.atleast_1d(_at_least(np.asarray(correct) - forgiven, guesses, epsilon))
    return min(1.0, float(luck.size * luck.min()) + canaries * delta / (forgiven + 1))


def tries_epsilon(
    correct: ArrayLike,
    guesses: ArrayLike,
    *,
    delta: float,
    canaries: int,
    error: float,
    records: int = 1,
) -> tuple[float, int]:
    """The largest epsilon that one of several tries refutes, and which; as `one_run_epsilon`, for `tries_p_value`.

    Args:
        correct: For each try.
        guesses: For each try.
        delta: Of one record.
        canaries: How many coins were tossed.
        error: The probability that the bound is too high.
        records: How many records a canary is.
    """
    correct, guesses = np.asarray(correct), np.asarray(guesses)
    # Free guesses are forgiven until what is left to chance is a fifth of the error; more would cost more than it buys.
    forgiven = max(1, math.ceil(canaries * delta * records / (0.8 * error))) - 1
    low, _ = clopper_pearson(correct, guesses, 1.0 - error / correct.size)
    without_delta = max(0.0, float(special.logit(low.max()))) / records

    def refuted(epsilon: float) -> bool:
        there = group_delta(epsilon, delta, records)
        return tries_p_value(correct, guesses, records * epsilon, there, canaries, forgiven=forgiven) <= error

    epsilon = _largest(refuted, without_delta) if delta else without_delta
    return epsilon, int(_at_least(correct - forgiven, guesses, records * epsilon).argmin())


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

    return _largest(refuted, math.log(rate / other) / records)


def _largest(refuted: Callable[[float], bool], high: float) -> float:
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
