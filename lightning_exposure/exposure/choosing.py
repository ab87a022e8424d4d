"""`auto`: a sample that grows until it is precise enough, a count wherever that is as cheap, and a check on both.

The sample comes first: it is cheap, and it tells what an exact count would cost. A count that then needs far more than
the sample promised refutes the sample: there are secrets that it did not see. What is left then is a uniform sample,
which no model can mislead, and the part of the count that was done, which is a lower bound on the rank.

The error that the confidence allows is shared out beforehand, so that looking several times costs nothing in trust: a
part for each size of the sample, a part for the uniform sample. Each of these intervals misses with at most the
probability that was set aside for it, so the one that is reported misses with at most the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lightning_exposure.exposure.case import Case, bits_of_rank
from lightning_exposure.exposure.counting import count, estimates_from_ranks
from lightning_exposure.exposure.references import draw_references, estimates_from_references
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.exposure.weighted import estimates_from_walks
from lightning_exposure.walks import DistinctSampler, DistinctWalks

_UNIFORM_SHARE = 0.2
"""The part of the error that is set aside for the uniform sample."""

_SIZES = {1: 0.4, 4: 0.4, 16: 0.2}
"""The sizes at which a sample is looked at, as parts of the largest (a 16th, a quarter, all), and their errors."""

_MARGIN = 1.25
"""The number of expansions an exact count will need is itself estimated: how much more must fit in the budget."""

_PATIENCE = 4.0
"""A count that was begun to save work is ended when it has needed so many times what the sample promised."""


def measure_automatically(case: Case) -> list[ExposureEstimate]:
    """Exact where that is affordable, and estimated without bias where it is not."""
    return _Measurement(case).run()


@dataclass(frozen=True)
class Look:
    """One size of a growing sample, and how much of the error is set aside for it."""

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

    def __init__(self, case: Case) -> None:
        self._case = case
        self._estimates: dict[int, ExposureEstimate] = {}
        self._settled: set[int] = set()
        self._spent = 0

    def run(self) -> list[ExposureEstimate]:
        case = self._case
        error = 1.0 - case.confidence
        sampler = DistinctSampler(case.tree, case.samples, seed=case.seed, bound=case.bound, memory=case.memory)
        plan = looks(case.samples, case.precision, error * (1.0 - _UNIFORM_SHARE))
        for number, look in enumerate(plan):
            walks = sampler.draw(look.samples)
            estimates = estimates_from_walks(case, walks, 1.0 - look.error)
            self._estimates |= {i: each for i, each in enumerate(estimates) if i not in self._settled}
            if walks.complete:
                break
            growth = plan[number + 1].samples / look.samples if number + 1 < len(plan) else None
            self._count_what_is_affordable(walks, growth, error * _UNIFORM_SHARE)
            if not self._too_wide():
                break
        spent = self._spent + walks.expansions
        return [
            replace(self._estimates[i], expansions=case.expansions + spent, confidence=case.confidence)
            for i in range(len(case))
        ]

    def _too_wide(self) -> list[int]:
        """The secrets whose intervals are wider than was asked for, and could still become narrower."""
        precision = self._case.precision or 0.0
        open_ones = (i for i in range(len(self._case)) if i not in self._settled)
        return [i for i in open_ones if self._estimates[i].high - self._estimates[i].low > precision]

    def _count_what_is_affordable(self, walks: DistinctWalks, growth: float | None, error: float) -> None:
        """Count the secrets for which that is worth its while.

        Args:
            walks: The sample so far.
            growth: By how much it would grow next; None: this was the last one.
            error: What may be spent on a uniform sample, if the count shows that the walks cannot be trusted.
        """
        case = self._case
        needed = self._needed(walks)
        limit = self._worth(walks, growth)
        group = sorted((i for i in needed if needed[i] <= limit), key=lambda i: float(case.costs[i]))
        refuted: dict[int, int] = {}
        while group:
            budget = case.budget
            if case.precision is not None:
                budget = min(budget, int(_PATIENCE * needed[group[-1]]) + 1)
            part, ranks = count(replace(case.only(group), budget=budget))
            self._spent += ranks.expansions
            if ranks.cut is None:
                self._settle(dict(zip(group, estimates_from_ranks(part, ranks), strict=True)))
                break
            # The more expensive half needs more than the sample promised; the cheaper half may still keep its word.
            half = len(group) // 2
            refuted |= dict(zip(group[half:], ranks.fewest[half:], strict=True))
            group = group[:half]
        if refuted:
            self._fall_back(refuted, error)

    def _needed(self, walks: DistinctWalks) -> dict[int, float]:
        """What an exact count of each open secret will need, as the sample tells."""
        case = self._case
        limits = case.rounding.at_most(case.costs).tolist()
        return {i: _MARGIN * walks.expected_expansions(limits[i]) for i in range(len(case)) if i not in self._settled}

    def _worth(self, walks: DistinctWalks, growth: float | None) -> float:
        """How many expansions a count may need.

        All that the budget allows, if the question is still open when the sample ends. As long as the sample can
        answer: what the sample has cost so far, or what going on with it would cost.
        """
        budget = float(self._case.budget)
        if self._case.precision is None or (growth is None and self._too_wide()):
            return budget
        to_go = walks.expansions * (growth - 1.0) if growth is not None and self._too_wide() else 0.0
        return min(budget, max(float(walks.expansions), to_go))

    def _fall_back(self, refuted: dict[int, int], error: float) -> None:
        """The interval of a uniform sample, cut off at what a count found, for secrets whose sample was refuted."""
        case = self._case.only(list(refuted))
        if case.tree.size == case.tree.format.size:
            sample = draw_references(case, case.seed + 1)
            self._spent += sample.expansions
            estimates = estimates_from_references(case, sample, 1.0 - error)
            by = f"a uniform sample of {len(sample.costs):,} secrets"
        else:  # what begins with a known text cannot be drawn uniformly
            size = case.tree.size
            estimates = [case.estimate(i, "sampling", size, (1, size), 0, "", is_bound=True) for i in range(len(case))]
            by = "nothing more than the number of secrets"
        settled = {}
        for (i, fewest), estimate in zip(refuted.items(), estimates, strict=True):
            ceiling = bits_of_rank(fewest, case.tree.bits)
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

    def _settle(self, estimates: dict[int, ExposureEstimate]) -> None:
        self._estimates |= estimates
        self._settled |= estimates.keys()
