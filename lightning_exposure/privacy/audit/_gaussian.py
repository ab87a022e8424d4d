"""What right guesses prove if privacy is that of a Gaussian: the bound of Mahloujifar, Melis and Chaudhuri.

"Auditing f-Differential Privacy in One Run" (2024) asks not for one pair (epsilon, delta) but for a whole trade-off
between the two errors of anyone who guesses. Here it is that of a Gaussian with standard deviation 1 that a record
shifts by mu, as of the Gaussian mechanism. That is an assumption: a training run whose trade-off has another shape can
have a smaller epsilon than this bound says. On randomized response with an epsilon of 1 it claims about
1.35; a Gaussian with as many right guesses has 5.6.

For a canary, the coins of all others, and any event that does not depend on its own coin, mu says
`P[event | in] <= F(P[event | out])` with `F(x) = Phi(Phi^-1(x) + mu)`, and the other way round. Take the event that a
guess is made about it and that at least j - 1 of the other guesses are right. Averaged over canaries and guesses, F
being concave: the probability mass of right guesses in outcomes with at least j right ones is at most F of that of
wrong guesses in outcomes with at least j - 1. Beginning with a probability of `error` for as many right guesses as
there were, this says step by step how likely outcomes with one fewer must be at least; if all together come to more
than 1, then so many right guesses are less likely than `error`.

Published for guesses on both sides of all canaries. If all guesses are "in", each canary has only one of the two kinds
of guesses, and everything holds with half as many canaries.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Floats = NDArray[np.float64]

_LARGEST = 16.0
_POINTS = 33
_ROUNDS = 3


def gaussian_mu(correct: int, guesses: int, canaries: float, error: float) -> float:
    """The largest mu that so many right guesses refute; 0 if they refute none.

    Args:
        correct: How many guesses were right.
        guesses: How many were made; fixed before anything was seen.
        canaries: How many coins were tossed; half as many if all guesses are "in".
        error: The probability that the bound is too high.

    Example:
        >>> round(gaussian_mu(95, 100, 200, 0.05), 2)
        0.97
    """
    if 2 * correct <= guesses:
        return 0.0
    low, high = 0.0, _LARGEST
    for _ in range(_ROUNDS):  # each makes the interval 32 times smaller
        tried = np.linspace(low, high, _POINTS)
        refuted = _refuted(tried, correct, guesses, canaries, error)
        if not refuted[0]:
            return 0.0
        place = int(np.flatnonzero(refuted)[-1])
        low, high = float(tried[place]), float(tried[min(place + 1, _POINTS - 1)])
    return low


def _refuted(mu: Floats, correct: int, guesses: int, canaries: float, error: float) -> NDArray[np.bool_]:
    """Whether so many right guesses are less likely than `error`, for each mu. The larger mu, the likelier they are."""
    right = np.full(mu.shape, error * correct / canaries)
    wrong = np.full(mu.shape, error * (guesses - correct) / canaries)
    whole = guesses / canaries
    for count in range(correct - 1, -1, -1):
        more = np.maximum(wrong, special.ndtr(special.ndtri(np.minimum(right, 1.0)) - mu))
        grows = more > wrong
        right, wrong = right + count / (guesses - count) * (more - wrong), more
        # What has stopped growing stays as it is; what is too much already is refuted.
        if (~grows | (right + wrong > whole)).all():
            break
    refuted: NDArray[np.bool_] = right + wrong > whole * (1.0 + 1e-9)
    return refuted


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian that a record shifts by mu, at a delta above 0.

    Example:
        >>> [round(gaussian_epsilon(mu, 1e-5), 2) for mu in (0.5, 1.0, 2.0, 4.0)]
        [1.99, 4.38, 10.0, 24.38]
    """
    if mu <= 0.0:
        return 0.0

    def too_small(epsilon: float) -> float:
        kept = special.ndtr(mu / 2 - epsilon / mu)
        return float(kept - math.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)) - delta)

    if too_small(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while too_small(high) > 0.0:
        high *= 2.0
    return float(optimize.brentq(too_small, 0.0, high, xtol=1e-9))
