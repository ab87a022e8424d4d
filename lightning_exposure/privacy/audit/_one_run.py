"""What right guesses about the canaries of one training run prove about epsilon: pure functions.

Each of some canaries was put into the training data or left out by a fair coin of its own. Someone who sees only what
the training gave says "in" or "out" for some of them. The idea, and the bound for delta 0, are those of Steinke, Nasr
and Jagielski, "Privacy Auditing with One (1) Training Run" (2023). What is new is how much a delta may spoil, and that
several numbers of guesses can be tried almost for free.

**Guesses.** Let x be the vector that says which guesses are right, surest guess first, and u(x) its probability under
the training run, divided by its probability if every guess were right by itself with probability
`q = e^epsilon / (1 + e^epsilon)`. Take one canary, the coins of all others, and any set of outcomes in which the guess
about it is made at place k. Turning its coin changes nothing but the guess at place k. So (epsilon, delta)-privacy says
that being right there is at most `e^epsilon` times as likely as being wrong, plus `delta / 2` for each of the two
guesses that can be made about it. Summed over the canaries, and with the best set for each,

    sum over k and x with x_k = 1 of P_q(x) * max(0, u(x) - u(x with x_k = 0)) <= canaries * delta * sides / 2,

with 1 side if all guesses are "in". (*)

**Delta 0.** u grows nowhere, so every event that more right guesses make more likely is at most as likely as under P_q.

**One number of guesses.** By symmetry only the number of right guesses counts, and (*) becomes a linear program. Its
solution moves probability from below some number s <= correct up to where it helps; see `count_p_value`.

**Stages.** For an event A that more right guesses make more likely, `1_A - P_q(A)` is the sum over the stages of
what a stage adds to what is expected. Given the stages before it, the probability of A grows with the number of right
guesses in it, between 0 and 1, so it is a mixture of thresholds. As a flow along the places where a wrong guess turns
right, the part of a stage of n new guesses nowhere exceeds `block_leverage(n)`. Multiplied with u and summed up, (*)
gives

    P(A) <= P_q(A) + canaries * delta * sides / 2 * the largest block_leverage of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lightning_exposure.privacy.audit._bounds import group_delta, largest
from lightning_exposure.privacy.audit._guessing import GuessingTest

Floats = NDArray[np.float64]

_STEP = 0.01
"""Epsilons are tried in such steps where a p-value need not grow with epsilon."""
_MOST = 40.0
"""No audit proves more: e^40 guesses would be needed."""
_NEGLIGIBLE = 1e-15
"""Probability that is left out of sums, and counted as if it were against us."""


def count_p_value(correct: int, guesses: int, epsilon: float, free: float) -> float:
    """How likely so many right guesses are at best, if a training run were (epsilon, delta)-private.

    With W the binomial of `guesses` trials that succeed with probability `e^epsilon / (1 + e^epsilon)`:

        P[W >= correct] + free * P[W < correct] * P[W >= correct] / (correct * P[W = correct])

    Args:
        correct: How many guesses were right.
        guesses: How many were made; fixed before anything was seen.
        epsilon: What is doubted.
        free: How many guesses delta makes right for free, on average: `canaries * delta * sides / 2`.

    Example:
        >>> round(count_p_value(10, 10, epsilon=0.0, free=0.0) * 1024, 6)
        1.0
    """
    if correct <= 0:
        return 1.0
    luck = float(_at_least(correct, guesses, epsilon))
    if free > 0.0:
        # P[W >= correct] / P[W = correct] as a sum of ratios: both can be too small for floating point.
        more = np.arange(1, guesses - correct + 1)
        with np.errstate(over="ignore"):
            tail = 1.0 + np.cumprod(math.exp(epsilon) * (guesses - correct + 1 - more) / (correct + more)).sum()
        luck += free * (1.0 - luck) * float(tail) / correct
    return min(1.0, luck)


def block_leverage(guesses: int, epsilon: float) -> float:
    """The largest `P[W >= s] * P[W < s] / (s * P[W = s])`: what one free guess in a stage can do at most.

    Example:
        >>> round(block_leverage(1, 0.0), 6), round(block_leverage(100, 1.0), 3)
        (0.5, 0.038)
    """
    s = np.arange(1, guesses + 1)
    above = _at_least(s, guesses, epsilon)
    alone = _chances(guesses, epsilon)[1:]
    # It is largest around the mean of W: far from there, where a tail is too small for floating point, it falls.
    seen = (alone > 1e-200) & (above > 1e-200)
    return float((above[seen] * (1.0 - above[seen]) / (s[seen] * alone[seen])).max())


@lru_cache(maxsize=4096)
def _leverage_from(block: int, quarters: int) -> float:
    """`block_leverage` for all epsilons from so many quarters on: it falls with epsilon."""
    return block_leverage(block, quarters / 4)


def _chances(guesses: int, epsilon: float) -> Floats:
    """P[W = s] for s from 0 on."""
    s = np.arange(guesses + 1)
    ways = special.gammaln(guesses + 1) - special.gammaln(s + 1) - special.gammaln(guesses - s + 1)
    chances: Floats = np.exp(ways + s * special.log_expit(epsilon) + (guesses - s) * special.log_expit(-epsilon))
    return chances


def staged_luck(level: float, guesses: Sequence[int], epsilon: float) -> float:
    """How likely it is that in some stage so many guesses are right that this alone has a probability of `level`.

    Each guess is right by itself, with probability `e^epsilon / (1 + e^epsilon)`, and each stage contains the ones
    before it.

    Example:
        >>> round(staged_luck(0.25, (2, 3), 0.0), 6)  # both of the first two right; three of three is among that
        0.25
    """
    needed = _needed(level, np.asarray(guesses), epsilon)
    state, lowest, before, luck = np.ones(1), 0, 0, 0.0
    for size, bound in zip(guesses, needed.tolist(), strict=True):
        state = np.convolve(state, _chances(size - before, epsilon))
        cut = max(0, bound - lowest)
        luck += float(state[cut:].sum())
        state, before = state[:cut], size
        if not len(state):
            break
        small = np.cumsum(state) < _NEGLIGIBLE
        luck += _NEGLIGIBLE
        lowest, state = lowest + int(small.sum()), state[~small]
    return min(1.0, luck)


def staged_p_value(correct: Sequence[int], guesses: Sequence[int], epsilon: float, free: float) -> float:
    """How likely it is at best that some stage is as telling as the most telling one here.

    Args:
        correct: How many guesses were right, stage by stage.
        guesses: How many were made; each stage contains the ones before it. Fixed before anything was seen.
        epsilon: What is doubted.
        free: As for `count_p_value`.
    """
    if len(guesses) == 1:
        return count_p_value(correct[0], guesses[0], epsilon, free)
    spoilt = free * _leverage(guesses, epsilon) if free else 0.0
    return min(1.0, staged_luck(_level(correct, guesses, epsilon), guesses, epsilon) + spoilt)


def refuted_epsilon(
    test: GuessingTest, correct: Sequence[int], *, delta: float, canaries: int, records: int = 1
) -> tuple[float, int]:
    """The largest epsilon that a test refutes, a lower bound on the true one, and which stage is the most telling.

    With one stage the p-value grows with epsilon: what is refuted ends somewhere. With several, steps of its boundaries
    can make it fall a little now and then; so epsilons are tried on a grid that is fixed beforehand, from 0 on, up to
    the first that is not refuted. For this bound to be above the true epsilon, the first epsilon of the grid above the
    true one must have been refuted, although the training keeps it, too.

    Args:
        test: What was guessed.
        correct: How many guesses were right, stage by stage.
        delta: Of one record.
        canaries: How many coins were tossed.
        records: How many records of the training data a canary is. The bound is for one record: what is refuted is
            the privacy that it gives to a group of so many.
    """

    def free(epsilon: float) -> float:
        return canaries * group_delta(epsilon, delta, records) * test.sides / 2

    def refuted(epsilon: float) -> bool:
        if _level(correct, test.guesses, records * epsilon) > test.error:
            return False  # as a stage alone, which is quickly seen
        return staged_p_value(correct, test.guesses, records * epsilon, free(epsilon)) <= test.error

    if len(correct) == 1:
        return largest(refuted, _MOST / records), 0
    step = _first_in_doubt(test, correct, free, records)
    while step * _STEP < _MOST and refuted(step * _STEP):
        step += 1
    epsilon = max(0, step - 1) * _STEP
    alone = _at_least(np.asarray(correct), np.asarray(test.guesses), records * epsilon)
    return epsilon, int(alone.argmin())


def _first_in_doubt(test: GuessingTest, correct: Sequence[int], free: Callable[[float], float], records: int) -> int:
    """The first step of the grid that is not refuted even if the stages are counted as if they were tests apart.

    All that is below it is refuted: stages that overlap are never worse, and what is computed here grows with epsilon.
    """
    leverage = _leverage(test.guesses, 0.0) if free(0.0) else 0.0  # the largest: it falls with epsilon

    def sure(step: int) -> bool:
        epsilon = step * _STEP
        level = _level(correct, test.guesses, records * epsilon)
        return len(correct) * level + free(epsilon) * leverage <= test.error

    low, high = 0, math.ceil(_MOST / _STEP)
    if not sure(low):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sure(middle) else (low, middle)
    return high


def _leverage(guesses: Sequence[int], epsilon: float) -> float:
    blocks = {size - before for before, size in zip((0, *guesses), guesses, strict=False)}
    return max(_leverage_from(block, math.floor(4 * epsilon)) for block in blocks)


def _level(correct: Sequence[int], guesses: Sequence[int], epsilon: float) -> float:
    """The probability of the most telling stage alone."""
    return float(_at_least(np.asarray(correct), np.asarray(guesses), epsilon).min())


def _needed(level: float, guesses: NDArray[np.int64], epsilon: float) -> NDArray[np.int64]:
    """The fewest right guesses of each stage that alone are no more likely than `level`."""
    low, high = np.zeros_like(guesses), guesses + 1  # high is always enough, low never
    while (high - low > 1).any():
        middle = (low + high) // 2
        enough = _at_least(middle, guesses, epsilon) <= level
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _at_least(correct: ArrayLike, guesses: ArrayLike, epsilon: float) -> Floats:
    """The probability of so many right guesses, if each is as likely to be right as an epsilon allows."""
    needed = np.asarray(correct, dtype=float)
    spare = np.asarray(guesses, dtype=float) - needed
    # A tail of the binomial is an incomplete beta function.
    tail = special.betainc(np.maximum(needed, 1.0), np.maximum(spare, -0.5) + 1.0, float(special.expit(epsilon)))
    return np.where(needed > 0, np.where(spare < 0, 0.0, tail), 1.0)
