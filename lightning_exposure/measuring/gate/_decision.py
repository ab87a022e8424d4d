"""What a gate decides, as pure functions of bounds: when a limit is exceeded, and how the error of a run is kept.

The null hypothesis of a gate is "at every look of this run, the true exposure of every canary is at most the limit".
The gate may reject it wrongly with a probability of at most alpha, however many looks and canaries there are.

**How.** A look has two stages. The first only *suspects*: intervals at their usual confidence, no claim. If the lower
end of an estimated interval is above the limit, the gate picks the one canary whose lower end is highest, and measures
it once more: with walks of a new seed, and an interval that misses with a probability of at most

    alpha_k = alpha / (k (k + 1)),    k = 1, 2, 3, ...

for the k-th such confirmation of the run. Only if the lower end of this interval is above the limit, too, does the gate
answer "exceeded". Where everything was counted, nothing is estimated: such an answer is certain and costs nothing.

**Proof.** Call F_k all that is known when the k-th confirmation is about to begin: the weights, all earlier walks, and
which canary was picked. The walks of the confirmation have a seed of their own, so given F_k its interval still covers
the true exposure with a probability of at least 1 - alpha_k. Under the null that exposure is at most the limit, so that
a lower end above the limit is a miss: given F_k, it has a probability of at most alpha_k. Whether there is a k-th
confirmation at all is known from F_k. So the probability that any confirmation of the run answers wrongly is at most
alpha_1 + alpha_2 + ... = alpha (1/2 + 1/6 + 1/12 + ...) = alpha.

The error of a confirmation is spent when it begins, and is not returned if its walks turn out to have seen everything:
whether they do depends on chance, and returning it would allow retries until chance is kind.

**Why not simply Bonferroni.** Intervals for T looks at m canaries at a confidence of 1 - alpha / (T m) need T to be
known, and are wide at every look. Here the canary is picked with one sample and judged with another, so that the number
of canaries costs nothing; and a look that suspects nothing costs nothing.

The answer "within" is about one look: *all* canaries have their upper ends at or below the limit. If a true exposure is
above it, then the interval of that one canary must have missed, so no correction for the number of canaries is needed.
Further measurements of a look have (1 - confidence) / 2, / 4, ... to miss with, and each end of an interval has half of
that, so all of them together keep the confidence of the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.verdicts import is_certain

Answer = Literal["within", "exceeded", "undecided"]
"""What a gate says."""

WITHIN: Answer = "within"
EXCEEDED: Answer = "exceeded"
UNDECIDED: Answer = "undecided"

_STEP = 4
"""A sample that is so many times as large has intervals half as wide."""


class Bounds(NamedTuple):
    """What is known of one exposure.

    Attributes:
        low: It is at least this.
        high: It is at most this.
        certain: Whether that was counted, and not estimated from a sample.
    """

    low: float
    high: float
    certain: bool = False


Measure = Callable[[Sequence[str], int, float], Mapping[str, Bounds]]
"""Measures some canaries again with walks of a new seed: their ids, how many times the usual effort, and the
probability with which their intervals may miss."""


class GateLook(NamedTuple):
    """What one look found.

    Attributes:
        answer: Of the gate.
        bounds: Of each canary, as they were in the end.
        canary: The id of the canary that the answer is about: the one that exceeds the limit, or comes closest to it.
    """

    answer: Answer
    bounds: dict[str, Bounds]
    canary: str


@dataclass
class AlphaSpending:
    """The error of a run: how much there is, and how many confirmations have had their part.

    Attributes:
        alpha: The largest probability of a wrong alarm in the whole run.
        confirmations: How many there were.

    Example:
        >>> spending = AlphaSpending(0.06)
        >>> [round(spending.next(), 4) for _ in range(3)], round(spending.spent, 4)
        ([0.03, 0.01, 0.005], 0.045)
    """

    alpha: float
    confirmations: int = 0

    def next(self) -> float:
        """Spend the error of the next confirmation."""
        self.confirmations += 1
        return self.alpha / (self.confirmations * (self.confirmations + 1))

    @property
    def spent(self) -> float:
        """What all confirmations so far had together."""
        return self.alpha * self.confirmations / (self.confirmations + 1)


def bounds_of(estimate: ExposureEstimate) -> Bounds:
    """What can be defended of an estimate: of an extrapolation, only that an exposure has a ceiling.

    >>> bounds_of(ExposureEstimate("pin 1234", 9.0, 9.0, 9.0, "skewnormal", 20.0, 3.0, 13.3, False, 0.95, 9))
    Bounds(low=0.0, high=13.3, certain=False)
    """
    if estimate.method == "skewnormal":
        return Bounds(0.0, estimate.ceiling_bits)
    return Bounds(estimate.low, estimate.high, is_certain(estimate))


def efforts_up_to(largest: int) -> list[int]:
    """How many times the usual effort is made, one after the other, as long as something is undecided.

    >>> efforts_up_to(16), efforts_up_to(6), efforts_up_to(1)
    ([4, 16], [4, 6], [])
    """
    efforts = []
    effort = _STEP
    while effort < largest:
        efforts.append(effort)
        effort *= _STEP
    return [*efforts, largest] if largest > 1 else []


def take_look(
    bounds: Mapping[str, Bounds],
    limit: float,
    spending: AlphaSpending,
    measure: Measure,
    *,
    error: float = 0.05,
    largest_effort: int = 16,
) -> GateLook:
    """One look of a gate: measure further what is undecided, and confirm what is suspected.

    Args:
        bounds: Of each canary, as they were measured.
        limit: The largest exposure that is allowed.
        spending: The error of the run; a confirmation takes its part.
        measure: Measures again.
        error: With which probability the intervals in `bounds` may miss.
        largest_effort: How many times the usual effort may be made.

    Example:
        >>> def measure(canaries, effort, error):
        ...     return {canary: Bounds(11.0, 12.0) for canary in canaries}
        >>> take_look({"a": Bounds(9.5, 12.5), "b": Bounds(1.0, 2.0)}, 10.0, AlphaSpending(0.05), measure)[::2]
        ('exceeded', 'a')
    """
    known = dict(bounds)
    for effort in efforts_up_to(largest_effort):
        error /= 2.0
        undecided = [key for key, each in known.items() if each.low <= limit < each.high and not each.certain]
        if not undecided or _surely_above(known, limit):
            break
        known |= measure(undecided, effort, error)
    suspects = [key for key, each in known.items() if each.low > limit]
    if suspects and not _surely_above(known, limit):
        suspect = max(suspects, key=lambda key: known[key].low)
        known[suspect] = measure([suspect], largest_effort, spending.next())[suspect]
        if known[suspect].low > limit:
            return GateLook(EXCEEDED, known, suspect)
    certain = _surely_above(known, limit)
    if certain:
        return GateLook(EXCEEDED, known, max(certain, key=lambda key: known[key].low))
    closest = max(known, key=lambda key: (known[key].high, known[key].low))
    return GateLook(WITHIN if known[closest].high <= limit else UNDECIDED, known, closest)


def _surely_above(known: Mapping[str, Bounds], limit: float) -> list[str]:
    """Those that were counted to be above the limit: no sample can change that."""
    return [key for key, each in known.items() if each.certain and each.low > limit]


def bits_of_luck(canaries: int, alpha: float) -> float:
    """What luck gives the luckiest of so many canaries, with a probability of up to alpha.

    A random secret that was not learned shows b bits with a probability of at most 2^-b, and n of them show it
    somewhere with at most n 2^-b.

    >>> round(bits_of_luck(20, 0.05), 2)
    8.64
    """
    return math.log2(canaries / alpha)
