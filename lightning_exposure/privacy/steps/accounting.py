"""How much privacy some steps of DP-SGD have spent, and what that allows: pure functions of a history.

A history lists steps as `(noise multiplier, sample rate, how many)`. Every epsilon here is an upper bound: it is true
at the given delta for the addition or removal of one record, whatever the accountant.

Two accountants are offered. "prv" adds up the distribution of the privacy loss numerically, by Opacus; it is the
tightest. "rdp" is the moments accountant of the DP-SGD paper, with Opacus's moments. Where the former is beyond what
floating-point numbers hold (tiny noise, an epsilon of several hundreds), the latter takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import check_delta, choice, refusal
from lightning_exposure._opacus import epsilon_by_losses, moment
from lightning_exposure.errors import ArgumentError

History = Sequence[tuple[float, float, int]]
"""Steps in their order, as `(noise multiplier, sample rate, how many)`."""

AccountantName = Literal["prv", "rdp"]
ACCOUNTANTS: Final = get_args(AccountantName)
"""What can be asked for, the tightest first."""

_NEAR_ONE = tuple(1 + 10 ** (power / 10) for power in range(-70, -9))
_USUAL = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 64, 80, 96, 128, 192, 256, 512)
# Rényi orders: those of Opacus, and more. With much noise and few steps the best one is large, with little noise it is
# close to 1.

_LARGEST_LOSS = 700.0  # beyond it, the exponential of a privacy loss is no number any more
_LARGEST_DOMAIN = 2**22  # points: about a second
_SMALLEST_DELTA = 1e-11  # below it, the rounding errors of the Fourier transform show
_RANGE_OF_NOISE = (1e-6, 1e6)


class Spent(NamedTuple):
    """An epsilon, and which accountant it is from.

    Attributes:
        epsilon: The upper bound; infinite if there was a step without noise.
        accountant: "prv" or "rdp".
    """

    epsilon: float
    accountant: str


class Spending(NamedTuple):
    """How much was spent after some steps.

    Attributes:
        steps: How many.
        epsilon: The upper bound.
    """

    steps: int
    epsilon: float


def spent(history: History, delta: float, accountant: AccountantName = "prv") -> Spent:
    """What a history has spent, and which accountant could say so.

    Args:
        history: Steps as `(noise multiplier, sample rate, how many)`.
        delta: The delta that goes with epsilon.
        accountant: "prv", or "rdp". If the former cannot, or is the looser one, the latter says.

    Raises:
        ArgumentError: An argument is none, or outside of its range.
    """
    check_accountant(accountant)
    check_delta(delta)
    steps = _checked(history)
    if not steps:
        return Spent(0.0, accountant)
    if any(noise == 0 for noise, _, _ in steps):
        return Spent(math.inf, accountant)
    bound = _by_moments(steps, delta)
    if accountant == "prv":
        tighter = _by_losses(steps, delta, bound)
        if tighter is not None and tighter < bound:
            return Spent(tighter, "prv")
    return Spent(bound, "rdp")


def epsilon(history: History, delta: float, accountant: AccountantName = "prv") -> float:
    """The epsilon that a history has spent; see `spent`.

    >>> round(epsilon([(1.0, 0.01, 1000)], delta=1e-6), 1)
    2.1
    >>> epsilon([], delta=1e-6), epsilon([(0.0, 0.01, 1)], delta=1e-6)
    (0.0, inf)
    """
    return spent(history, delta, accountant).epsilon


def with_steps(history: History, noise_multiplier: float, sample_rate: float, steps: int = 1) -> History:
    """A history with more steps at its end.

    >>> with_steps([(1.0, 0.1, 5)], 1.0, 0.1), with_steps([(1.0, 0.1, 5)], 2.0, 0.1)
    ([(1.0, 0.1, 6)], [(1.0, 0.1, 5), (2.0, 0.1, 1)])
    """
    listed = list(history)
    if steps and listed and listed[-1][:2] == (noise_multiplier, sample_rate):
        steps += listed.pop()[2]
    return [*listed, (noise_multiplier, sample_rate, steps)] if steps else listed


def spending(history: History, delta: float, accountant: AccountantName = "prv", points: int = 8) -> list[Spending]:
    """How epsilon grew over the steps of a history: after some of them, evenly spread, and after the last.

    Args:
        history: Steps as `(noise multiplier, sample rate, how many)`.
        delta: The delta that goes with epsilon.
        accountant: As for `spent`.
        points: After how many steps at most.

    Example:
        >>> [after for after, _ in spending([(1.0, 0.1, 5), (2.0, 0.1, 3)], delta=1e-6, accountant="rdp", points=4)]
        [2, 4, 6, 8]
    """
    total = sum(count for _, _, count in history)
    found = []
    for after in dict.fromkeys(-(-total * point // points) for point in range(1, points + 1)) if total else ():
        so_far, left = [], after
        for noise, rate, count in history:
            so_far += [(noise, rate, min(count, left))] if left else []
            left -= min(count, left)
        found.append(Spending(after, epsilon(so_far, delta, accountant)))
    return found


def noise_for(
    target_epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: AccountantName = "prv",
    *,
    history: History = (),
) -> float:
    """The smallest noise multiplier with which some steps stay within an epsilon.

    Where both accountants can tell, epsilon is at most the target and at least 99% of it.

    Args:
        target_epsilon: The epsilon after the last step.
        delta: The delta that goes with it.
        sample_rate: The probability with which a record is in a batch.
        steps: How many steps there will be.
        accountant: "prv" or "rdp".
        history: Steps that were made before.

    Raises:
        ArgumentError: No noise is enough, because the history has spent too much or the target is too small.

    >>> noise = noise_for(2.0, 1e-6, sample_rate=0.01, steps=1000)
    >>> 0.99 * 2.0 <= epsilon([(noise, 0.01, 1000)], 1e-6) <= 2.0
    True
    """
    before = spent(history, delta, accountant).epsilon

    def with_noise(noise: float, way: AccountantName) -> float:
        return epsilon(with_steps(history, noise, sample_rate, steps), delta, way)

    most = _RANGE_OF_NOISE[1]
    if not target_epsilon > 0 or before >= target_epsilon or with_noise(most, accountant) > target_epsilon:
        raise ArgumentError(
            f"target_epsilon is {target_epsilon!r}; expected one that {steps} steps can keep with some noise"
            + (f", and the steps before them have spent {before:.4g}" if before else "")
            + ". Give a larger target_epsilon or a larger delta."
        )
    # The quick accountant first; from its answer, the other one needs a few looks only.
    found = _descend(lambda noise: with_noise(noise, "rdp"), target_epsilon, start=1.0, factor=4.0)
    if accountant == "prv":
        found = _descend(lambda noise: with_noise(noise, "prv"), target_epsilon, start=found, factor=1.1)
    return found


def steps_within(
    max_epsilon: float,
    delta: float,
    sample_rate: float,
    noise_multiplier: float,
    accountant: AccountantName = "prv",
    *,
    history: History = (),
    at_most: int = 2**40,
) -> int:
    """The largest number of steps that stay within an epsilon.

    Args:
        max_epsilon: What must not be exceeded.
        delta: The delta that goes with it.
        sample_rate: The probability with which a record is in a batch.
        noise_multiplier: The noise of each step.
        accountant: "prv" or "rdp".
        history: Steps that were made before.
        at_most: Look no further than this.

    >>> steps_within(2.0, 1e-6, sample_rate=0.01, noise_multiplier=1.0, accountant="rdp")
    531
    """

    def after(steps: int, way: AccountantName) -> float:
        return epsilon(with_steps(history, noise_multiplier, sample_rate, steps), delta, way)

    if after(0, accountant) > max_epsilon:
        return 0
    known = 0
    for way in dict.fromkeys(("rdp", accountant)):  # the quick one first, as above
        known = _last(lambda steps, way=way: after(steps, way), max_epsilon, known, at_most)  # type: ignore[misc]
    return known


# ---- the two accountants --------------------------------------------------------------------------------------


def _by_moments(steps: History, delta: float) -> float:
    """By Rényi differential privacy: the best of many orders."""
    bound, place = _best_order(steps, delta, _USUAL)
    if place == 0:
        bound = min(bound, _best_order(steps, delta, _NEAR_ONE)[0])
    return max(0.0, bound)


def _best_order(steps: History, delta: float, orders: tuple[float, ...]) -> tuple[float, int]:
    """The smallest epsilon of some orders, and the place of its order."""
    order = np.array(orders)
    moments = sum(_moments(noise, rate, orders) * count for noise, rate, count in steps)
    bounds = moments + (np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (order - 1))
    bounds = np.nan_to_num(bounds, nan=np.inf)
    return float(bounds.min()), int(bounds.argmin())


@lru_cache(maxsize=128)
def _moments(noise: float, rate: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """The Rényi divergence of one step, for every order."""
    values = [moment(noise, rate, order) for order in orders]
    # A series that is broken off is off by 1e-13 before it is divided by order - 1.
    found: NDArray[np.float64] = np.maximum(values, 0.0) + 1e-13 / (np.array(orders) - 1)
    return found


def _by_losses(steps: History, delta: float, bound: float) -> float | None:
    """By the distribution of the privacy loss; None where floating-point numbers do not suffice.

    Opacus's own accountant takes a fixed precision, which costs minutes and gigabytes where epsilon is large, and a
    span that can go beyond what the exponential function bears, where it silently gives too small an epsilon.

    Args:
        steps: A history.
        delta: The delta that goes with epsilon.
        bound: An epsilon that is known to be enough.
    """
    total = sum(count for _, _, count in steps)
    delta_error = delta / 1000
    span = max(_by_moments(steps, delta_error / 4), *(_single(entry, delta_error / (8 * total)) for entry in steps)) + 3
    if not span < _LARGEST_LOSS or delta < _SMALLEST_DELTA:
        return None
    wanted = min(0.5, max(0.001, bound / 200))
    spread = math.sqrt(total * math.log(12 / delta_error) / 2)
    precision = max(wanted, 2 * span * spread / _LARGEST_DOMAIN)
    if precision > max(0.01, bound / 50):
        return None
    tolerance = delta_error, precision
    return epsilon_by_losses(steps, delta, span=span, mesh=precision / spread, tolerance=tolerance)


def _single(entry: tuple[float, float, int], delta: float) -> float:
    return _by_moments([(*entry[:2], 1)], delta)


# ---- searching ------------------------------------------------------------------------------------------------


def _descend(function: Callable[[float], float], target: float, start: float, factor: float) -> float:
    """Where a falling function of the noise comes down to a target; at most half a percent below, if it is continuous.

    Args:
        function: Falls, about as a power of its argument.
        target: What it has to come down to.
        start: Where to begin.
        factor: How far the place may be from there; further steps are longer.
    """
    low, high = _RANGE_OF_NOISE
    left = right = start
    above = below = function(start)
    while below > target and right < high:
        left, above, right, factor = right, below, min(high, right * factor), factor * factor
        below = function(right)
    while above <= target and right > low:
        right, below, left, factor = left, above, max(low, left / factor), factor * factor
        above = function(left)
    middle = True
    while below < 0.995 * target and right / left > 1 + 1e-4:
        part = 0.5 if middle else _part(above, below, 0.998 * target)
        middle = not middle
        place = left * (right / left) ** part
        there = function(place)
        if there <= target:
            right, below = place, there
        else:
            left, above = place, there
    return right


def _last(function: Callable[[int], float], limit: float, known: int, at_most: int) -> int:
    """The last number at which a rising function is within a limit; `known` is a number at which it is."""
    good, bad = known, at_most + 1
    below, above = function(known), math.inf
    stride = max(1, known // 8)
    while good + stride < bad:
        value = function(good + stride)
        if value <= limit:
            good, below, stride = good + stride, value, 2 * stride
        else:
            bad, above = good + stride, value
    middle = True
    while bad - good > 1:
        part = 0.5 if middle else _part(below, above, limit)
        middle = not middle
        place = min(bad - 1, max(good + 1, round(good + (bad - good) * part)))
        value = function(place)
        if value <= limit:
            good, below = place, value
        else:
            bad, above = place, value
    return good


def _part(first: float, last: float, wanted: float) -> float:
    """How far between two values a wanted one is; not too close to either, so that a search gets on."""
    if not (0 < first < math.inf and 0 < last < math.inf) or first == last:
        return 0.5
    return min(0.98, max(0.02, math.log(wanted / first) / math.log(last / first)))


# ---- arguments ------------------------------------------------------------------------------------------------


def check_accountant(accountant: object) -> None:
    """Refuse an accountant that is none, or that is wrong.

    >>> check_accountant("gdp")
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: accountant is 'gdp'; expected one of 'prv', 'rdp'. The central limit
    theorem that 'gdp' rests on makes epsilon too small.
    """
    if accountant == "gdp":  # not a typo of 'rdp', which `choice` would suggest
        expected, remedy = (
            f"one of {', '.join(map(repr, ACCOUNTANTS))}",
            "The central limit theorem that 'gdp' rests on ",
        )
        raise refusal("accountant", accountant, expected, f"{remedy}makes epsilon too small.")
    choice("accountant", accountant, ACCOUNTANTS)


def _checked(history: History) -> list[tuple[float, float, int]]:
    for noise, rate, steps in history:
        if not (noise >= 0 and math.isfinite(noise) and 0 <= rate <= 1 and steps >= 0):
            raise refusal(
                "history",
                (noise, rate, steps),
                "a noise multiplier of at least 0, a sample rate between 0 and 1 and a number of steps",
            )
    return [(float(noise), float(rate), int(steps)) for noise, rate, steps in history if steps and rate]
