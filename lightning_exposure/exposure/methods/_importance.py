"""Importance: walks that follow the model: unbiased at every rank, with an interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure.intervals import weighted_count_interval
from lightning_exposure.exposure.methods._registered import METHODS
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tokenization.paths import PathFinder
from lightning_exposure.walks import DistinctWalks, RankCounts, distinct_walks, log_weights

_RESTS_ON = (
    "{} secrets drawn as the model likes them; it holds if no rarely drawn beginning hides many secrets that are as "
    "cheap, which a sample alone cannot see"
)


@METHODS.register("importance", priority=2)
def measure_by_importance(case: TreeCase) -> list[ExposureEstimate]:
    """The unbiased estimate from one sample without replacement."""
    walks = distinct_walks(case.tree, case.samples, seed=case.seed, bound=case.bound, memory=case.memory)
    return estimates_from_walks(case, walks, case.confidence)


def estimates_from_walks(case: TreeCase, walks: DistinctWalks, confidence: float) -> list[ExposureEstimate]:
    """Ranks from a weighted sample: the secret itself is counted exactly, only the others are estimated.

    Args:
        case: The secrets.
        walks: The sample, drawn within the case's bound.
        confidence: Of the intervals.
    """
    if walks.complete:
        counts = RankCounts(case.paths, case.costs, case.rounding)
        counts.add(walks.paths, walks.costs)
        each = zip(*counts.ranks(), strict=True)
        return [case.counted(i, *rank, walks.expansions) for i, rank in enumerate(each)]
    own = dict(PathFinder(case.paths).find(walks.paths))
    weights = log_weights(case.tree, case.paths, bound=case.bound, memory=case.memory)
    own_inclusion = walks.inclusion_of(weights)
    rests_on = _RESTS_ON.format(f"{len(walks.costs):,}")
    estimates = []
    for i, cost in enumerate(case.costs.tolist()):
        others = np.ones(len(walks.costs), dtype=bool)
        if i in own:
            others[own[i]] = False
        surely = walks.inclusion[others & case.rounding.surely_as_cheap(walks.costs, cost)]
        perhaps = walks.inclusion[others & case.rounding.perhaps_as_cheap(walks.costs, cost)]
        missed = min(own_inclusion[i], walks.least_inclusion(cost), perhaps.min(initial=1.0))
        low, high = _interval(surely, perhaps, missed, confidence)
        interval = (1.0 + low, min(float(case.tree.size), 1.0 + high))
        cheaper = float((1.0 / walks.inclusion[others & (walks.costs <= cost)]).sum())
        # With nothing cheaper in the sample the rank is somewhere below what the sample can resolve: a bound.
        is_bound = cheaper == 0.0 and interval[1] > 1.0
        rank = interval[1] if is_bound else min(interval[1], max(interval[0], 1.0 + cheaper))
        estimates.append(case.estimate(i, "importance", rank, interval, walks.expansions, rests_on, is_bound=is_bound))
    return estimates


def _interval(
    surely: NDArray[np.float64], perhaps: NDArray[np.float64], missed: float, confidence: float
) -> tuple[float, float]:
    """An interval for a count, from the inclusion probabilities of what counts for certain and of what may count."""
    heaviest = math.sqrt(1.0 - missed) / missed
    low, _ = weighted_count_interval(*_sum_and_variance(surely), heaviest, confidence)
    _, high = weighted_count_interval(*_sum_and_variance(perhaps), heaviest, confidence)
    return max(low, len(surely)), high  # what was found is certain


def _sum_and_variance(inclusion: NDArray[np.float64]) -> tuple[float, float]:
    return float((1.0 / inclusion).sum()), float(((1.0 - inclusion) / inclusion**2).sum())
