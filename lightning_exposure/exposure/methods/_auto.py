"""`auto`: a sample that grows until it is precise enough, a count wherever that is as cheap, and a check on both.

The sample comes first: it is cheap, and it tells what an exact count would cost. A count that then needs far more than
the sample promised refutes the sample: there are secrets that it did not see. What is left then is a uniform sample,
which no model can mislead, and the part of the count that was done, which is a lower bound on the rank.

Secrets in the middle of all others are what walks that follow the model are worst at, and what a uniform sample is best
at. So with a precision to reach, a uniform sample is drawn for them, too, and both intervals hold.

The error that the confidence allows is shared out beforehand, so that looking several times costs nothing in trust: a
part for each size of each sample. Each of these intervals misses with at most the probability that was set aside for
it, so whatever is reported misses with at most the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure._result import ExposureEstimate
from lightning_exposure.exposure.methods._exact import count, estimates_from_ranks
from lightning_exposure.exposure.methods._importance import estimates_from_walks
from lightning_exposure.exposure.methods._registered import METHODS
from lightning_exposure.exposure.methods._sampling import (
    GrowingDraws,
    GrowingReferences,
    estimates_from_draws,
    estimates_from_references,
)
from lightning_exposure.walks import DistinctSampler, DistinctWalks

_UNIFORM_SHARE = 0.3
"""The part of the error that is set aside for the uniform sample."""

_HITS = 16
"""A uniform sample is drawn for a secret if so many of its references should be as cheap: fewer tell little."""

_SIZES = {1: 0.4, 4: 0.4, 16: 0.2}
"""The sizes at which a sample is looked at, as parts of the largest (a 16th, a quarter, all), and their errors."""

_MARGIN = 1.25
"""The number of expansions an exact count will need is itself estimated: how much more must fit in the budget."""

_PATIENCE = 4.0
"""A count that was begun to save work is ended when it has needed so many times what the sample promised."""


@METHODS.register("auto", priority=4)
def measure_automatically(case: TreeCase) -> list[ExposureEstimate]:
    """Exact where that is affordable, and estimated without bias where it is not."""
    return _Measurement(case).run()


@dataclass(frozen=True)
class Look:
    """One size of growing samples, and how much of the error is set aside for it."""

    samples: int
    error: float


def looks(samples: int, precision: float | None, error: float) -> list[Look]:
    """The sizes at which a sample is looked at.

    Args:
        samples: The largest size.
        precision: None: only the largest size is looked at.
        error: What may be spent on all looks together.

    Example:
        >>> [(look.samples, round(look.error, 3)) for look in looks(4096, 0.25, 0.05)]
        [(256, 0.01), (1024, 0.02), (4096, 0.02)]
        >>> looks(4096, None, 0.05)
        [Look(samples=4096, error=0.05)]
    """
    if precision is None:
        return [Look(samples, error)]
    return [Look(max(1, samples // part), error * share) for part, share in reversed(_SIZES.items())]


class _Measurement:
    """One automatic measurement under way."""

    def __init__(self, case: TreeCase) -> None:
        self._case = case
        self._estimates: dict[int, ExposureEstimate] = {}
        self._settled: set[int] = set()
        self._counted = 0
        self._plan = looks(case.samples, case.precision, 1.0 - case.confidence)
        # What begins with a known text cannot be drawn uniformly.
        whole = case.tree.size == case.tree.format.size
        self._uniform: GrowingReferences | GrowingDraws | None = None
        if case.prior is not None:
            self._uniform = GrowingDraws(case, case.seed + 1) if case.prior.can_be_drawn_from else None
        elif whole:
            self._uniform = GrowingReferences(case, case.seed + 1)

    def run(self) -> list[ExposureEstimate]:
        case = self._case
        sampler = DistinctSampler(case.walked, case.samples, seed=case.seed, bound=case.bound, memory=case.memory)
        for number, look in enumerate(self._plan):
            walks = sampler.draw(look.samples)
            estimates = estimates_from_walks(case, walks, 1.0 - look.error * (1.0 - _UNIFORM_SHARE))
            self._estimates |= {i: each for i, each in enumerate(estimates) if i not in self._settled}
            if walks.complete:
                break
            self._look_at_references(look)
            self._count_what_is_affordable(walks, self._plan[number:])
            if not self._too_wide():
                break
        references = 0 if self._uniform is None else self._uniform.expansions
        spent = case.expansions + walks.expansions + references + self._counted
        return [replace(self._estimates[i], expansions=spent, confidence=case.confidence) for i in range(len(case))]

    def _look_at_references(self, look: Look) -> None:
        """Narrow the intervals of secrets that are no cheaper than many others."""
        many = [i for i in self._too_wide() if self._expected_hits(i, look.samples) >= _HITS]
        if self._case.precision is None or self._uniform is None or not many:
            return
        estimates = self._by_references(look.samples, 1.0 - look.error * _UNIFORM_SHARE)
        for i in many:
            self._estimates[i] = both(self._estimates[i], estimates[i])

    def _expected_hits(self, i: int, samples: int) -> float:
        """How many of so many references should be as cheap as a secret."""
        estimate = self._estimates[i]
        if self._case.prior is not None:
            return float(samples * 2.0**-estimate.bits)
        return float(estimate.rank * samples / 2.0**self._case.tree.bits)

    def _by_references(self, samples: int, confidence: float) -> list[ExposureEstimate]:
        """What secrets drawn uniformly, or from the prior, say about all secrets."""
        if isinstance(self._uniform, GrowingDraws):
            return estimates_from_draws(self._case, self._uniform.draw(samples), confidence)
        assert self._uniform is not None
        return estimates_from_references(self._case, self._uniform.draw(samples), confidence)

    def _too_wide(self) -> list[int]:
        """The secrets whose intervals are wider than was asked for, and could still become narrower."""
        precision = self._case.precision or 0.0
        open_ones = (i for i in range(len(self._case)) if i not in self._settled)
        return [i for i in open_ones if self._estimates[i].high - self._estimates[i].low > precision]

    def _count_what_is_affordable(self, walks: DistinctWalks, to_come: Sequence[Look]) -> None:
        """Count the secrets for which that is worth its while.

        Args:
            walks: The sample so far.
            to_come: This look and those that could follow.
        """
        case = self._case
        needed = self._needed(walks)
        group = sorted(
            (i for i in needed if needed[i] <= self._worth(i, walks, to_come)), key=lambda i: float(case.costs[i])
        )
        refuted: dict[int, tuple[int, float]] = {}
        while group:
            budget = case.budget
            if not set(group) & set(self._too_wide()):  # it was to be cheap, and nothing depends on it
                budget = min(budget, int(_PATIENCE * needed[group[-1]]) + 1)
            part, ranks = count(replace(case.only(group), budget=budget))
            self._counted += ranks.expansions
            if ranks.cut is None:
                self._settle(dict(zip(group, estimates_from_ranks(part, ranks), strict=True)))
                break
            # The more expensive half needs more than the sample promised; the cheaper half may still keep its word.
            half = len(group) // 2
            least = ranks.fewest if ranks.masses is None else ranks.masses[1]
            found = zip(ranks.fewest[half:], least[half:], strict=True)
            refuted |= dict(zip(group[half:], found, strict=True))
            group = group[:half]
        if refuted:
            self._fall_back(refuted)

    def _needed(self, walks: DistinctWalks) -> dict[int, float]:
        """What an exact count of each open secret will need, as the sample tells."""
        case = self._case
        limits = case.rounding.at_most(case.costs).tolist()
        return {i: _MARGIN * walks.expected_expansions(limits[i]) for i in range(len(case)) if i not in self._settled}

    def _worth(self, i: int, walks: DistinctWalks, to_come: Sequence[Look]) -> float:
        """How many expansions a count of a secret may need.

        All that the budget allows, if no sample that may still come will answer the question; intervals become half as
        wide when samples become four times as large. As long as one will: what going on with it costs. And what the
        sample has cost so far in any case: then the exact answer is as cheap as the other one.
        """
        case = self._case
        budget = float(case.budget)
        if case.precision is None:
            return budget
        worth = float(walks.expansions)
        if i in self._too_wide():
            width = self._estimates[i].high - self._estimates[i].low
            if width * math.sqrt(to_come[0].samples / to_come[-1].samples) > case.precision:
                return budget
            worth = max(worth, walks.expansions * (to_come[1].samples / to_come[0].samples - 1.0))
        return min(budget, worth)

    def _fall_back(self, refuted: dict[int, tuple[int, float]]) -> None:
        """The interval of a uniform sample, cut off at what a count found, for secrets whose sample was refuted.

        Args:
            refuted: How many secrets that are as cheap the count had found, and their mass.
        """
        case = self._case
        if self._uniform is not None:
            all_of_them = self._by_references(case.samples, 1.0 - self._plan[-1].error * _UNIFORM_SHARE)
            estimates = [all_of_them[i] for i in refuted]
            by = estimates[0].rests_on.removesuffix(", and nothing else")
        else:
            estimates = [self._nothing_known(i) for i in refuted]
            by = "nothing more than the number of secrets"
        settled = {}
        for (i, (fewest, mass)), estimate in zip(refuted.items(), estimates, strict=True):
            ceiling = case.exposure(i, mass)
            rests_on = (
                f"{by}, and {fewest:,} secrets that a count had found to be as cheap when its budget ended; the walks "
                "that follow the model had promised fewer, and are not used"
            )
            bits, high = min(estimate.bits, ceiling), min(estimate.high, ceiling)
            rank = max(estimate.rank, fewest)
            low = min(estimate.low, high)
            settled[i] = replace(
                estimate, bits=max(low, bits), low=low, high=high, rank=rank, method="sampling", rests_on=rests_on
            )
        self._settle(settled)

    def _nothing_known(self, i: int) -> ExposureEstimate:
        """Between the secret alone and all there are."""
        case = self._case
        mass = None if case.prior is None else case.whole(i)
        interval = (case.own(i), case.whole(i))
        return case.estimate(i, "sampling", case.size, interval, 0, "", mass=mass, is_bound=True)

    def _settle(self, estimates: dict[int, ExposureEstimate]) -> None:
        self._estimates |= estimates
        self._settled |= estimates.keys()


def both(walked: ExposureEstimate, drawn: ExposureEstimate) -> ExposureEstimate:
    """What walks and a uniform sample say together: the part of their intervals in which both are right.

    Where there is none, one of them missed; the uniform sample assumes nothing, so it is believed.

    Args:
        walked: From walks that follow the model.
        drawn: From a uniform sample.
    """
    low, high = max(walked.low, drawn.low), min(walked.high, drawn.high)
    if low > high:
        return replace(drawn, rests_on=f"{drawn.rests_on}; walks that follow the model contradict it")
    narrower = min(walked, drawn, key=lambda estimate: estimate.high - estimate.low)
    bits = min(high, max(low, narrower.bits))
    stays = bits == narrower.bits or narrower.prior_bits is not None  # against a prior the rank is a count by itself
    rank = narrower.rank if stays else 2.0 ** (narrower.size_bits - bits)
    rests_on = f"{walked.rests_on}; and on {drawn.rests_on}"
    return replace(narrower, bits=bits, rank=rank, low=low, high=high, rests_on=rests_on)
