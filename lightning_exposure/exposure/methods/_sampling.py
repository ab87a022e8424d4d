"""Sampling: rank among secrets drawn uniformly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.exposure._case import Case, TreeCase
from lightning_exposure.exposure.intervals import proportion_interval
from lightning_exposure.exposure.methods._registered import METHODS
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.walks import Rounding, UniformSample, score


def measure_by_sampling(case: Case) -> list[ExposureEstimate]:
    """Rank among secrets drawn uniformly."""
    return estimates_from_references(case, case.references(case.seed), case.confidence)


# Not as a decorator: it also measures what is not in a tree.
METHODS.register("sampling", priority=1)(measure_by_sampling)


class GrowingReferences:
    """Secrets drawn uniformly from all others; a larger sample holds the smaller one and scores only what it adds.

    Args:
        case: The secrets that are measured, and how many references there may be at most.
        seed: Of the draw.
    """

    def __init__(self, case: TreeCase, seed: int) -> None:
        self._case = case
        count = min(case.samples, case.tree.size - len(case))
        self._secrets = case.tree.format.sample(count, seed, exclude=case.secrets)
        self._costs = np.empty(0)
        self.expansions = 0

    def draw(self, samples: int) -> UniformSample:
        """The first so many of them."""
        missing = self._secrets[len(self._costs) : samples]
        if missing:
            scored = score(self._case.tree, missing, memory=self._case.memory)
            self._costs = np.concatenate([self._costs, scored.costs])
            self.expansions += scored.expansions
        return UniformSample(self._secrets[:samples], self._costs[:samples], self.expansions)


def estimates_from_references(case: Case, sample: UniformSample, confidence: float) -> list[ExposureEstimate]:
    """Ranks among references; the other given secrets are known, and counted as they are."""
    drawn, unseen = len(sample.costs), case.size - len(case)
    estimates = []
    for i in range(len(case)):
        known = rank_counts(case.costs, i, case.rounding)
        hits = rank_counts(np.append(sample.costs, case.costs[i]), drawn, case.rounding)
        if drawn == unseen:
            ranks = [1 + a + b for a, b in zip(known, hits, strict=True)]
            estimates.append(case.counted(i, ranks[0], ranks[1], ranks[2], sample.expansions))
            continue
        rank, interval, is_bound = rank_among_references(known, hits, drawn, unseen, confidence)
        rests_on = f"{drawn:,} {case.noun} drawn uniformly, and nothing else"
        estimates.append(case.estimate(i, "sampling", rank, interval, sample.expansions, rests_on, is_bound=is_bound))
    return estimates


def rank_among_references(
    known: tuple[int, int, int], hits: tuple[int, int, int], drawn: int, unseen: int, confidence: float
) -> tuple[float, tuple[float, float], bool]:
    """A rank, its interval (Clopper-Pearson), and whether the rank is only the end of it.

    Args:
        known: How many of the other given secrets are as cheap (see `rank_counts`).
        hits: How many of the references are.
        drawn: How many references there are.
        unseen: How many secrets they were drawn from.
        confidence: Of the interval.
    """
    low = proportion_interval(hits[1], drawn, confidence)[0]
    high = proportion_interval(hits[2], drawn, confidence)[1]
    interval = (1.0 + known[1] + max(hits[1], unseen * low), 1.0 + known[2] + unseen * high)
    if not hits[0]:  # no reference is as cheap: the rank is somewhere below what they can resolve
        return interval[1], interval, True
    rank = 1.0 + known[0] + unseen * hits[0] / drawn
    return min(interval[1], max(interval[0], rank)), interval, False


def rank_counts(costs: NDArray[np.float64], i: int, rounding: Rounding) -> tuple[int, int, int]:
    """How many others are as cheap as number i: by their costs, for certain, and perhaps."""
    others, cost = np.delete(costs, i), float(costs[i])
    return (
        int((others <= cost).sum()),
        int(rounding.surely_as_cheap(others, cost).sum()),
        int(rounding.perhaps_as_cheap(others, cost).sum()),
    )
