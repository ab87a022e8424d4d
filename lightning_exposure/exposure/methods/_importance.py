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

Floats = NDArray[np.float64]

_RESTS_ON = (
    "{} secrets drawn as the model likes them; it holds if no rarely drawn beginning hides many secrets that are as "
    "cheap, which a sample alone cannot see"
)

_RESTS_ON_BOTH = "{} secrets drawn as the model and the prior like them"
"""What the prior likes cannot hide from a sample that follows it."""


@METHODS.register("importance", priority=2)
def measure_by_importance(case: TreeCase) -> list[ExposureEstimate]:
    """The unbiased estimate from one sample without replacement."""
    walks = distinct_walks(case.walked, case.samples, seed=case.seed, bound=case.bound, memory=case.memory)
    return estimates_from_walks(case, walks, case.confidence)


def estimates_from_walks(case: TreeCase, walks: DistinctWalks, confidence: float) -> list[ExposureEstimate]:
    """Ranks from a weighted sample: the secret itself is counted exactly, only the others are estimated.

    Args:
        case: The secrets.
        walks: The sample, drawn within the case's bound.
        confidence: The confidence level of the intervals.
    """
    log_prior = None if case.prior is None else case.prior.of_found(walks)
    if walks.complete:
        counts = RankCounts(case.paths, case.costs, case.rounding, case.log_prior)
        counts.add(walks.paths, walks.costs, log_prior)
        return case.counted_all(counts.ranks(), walks.expansions, counts.masses())
    own = dict(PathFinder(case.paths).find(walks.paths))
    own_weights = log_weights(case.walked, case.paths, bound=case.bound, memory=case.memory)
    own_inclusion = walks.inclusion_of(own_weights)
    follows_prior = case.prior is not None and case.prior.proposes
    rests_on = (_RESTS_ON_BOTH if follows_prior else _RESTS_ON).format(f"{len(walks.costs):,}")
    estimates = []
    for i, cost in enumerate(case.costs.tolist()):
        others = np.ones(len(walks.costs), dtype=bool)
        if i in own:
            others[own[i]] = False
        weights = case.weights(i, log_prior, len(walks.costs))
        surely = others & case.rounding.surely_as_cheap(walks.costs, cost)
        perhaps = others & case.rounding.perhaps_as_cheap(walks.costs, cost)
        missed = min(own_inclusion[i], walks.least_inclusion(cost), walks.inclusion[perhaps].min(initial=1.0))
        low, high = _interval(
            _sum_and_variance(walks.inclusion[surely], weights[surely]),
            _sum_and_variance(walks.inclusion[perhaps], weights[perhaps]),
            _heaviest(case, i, walks, weights, missed),
            confidence,
        )
        itself = case.own(i)
        low = max(low, float(weights[surely].sum()))  # what was found is certain
        most = case.whole(i)
        if case.prior is not None:  # and so is what was found to be more expensive
            most = max(itself + low, most - float(weights[others & ~perhaps].sum()))
        interval = (itself + low, min(most, itself + high))
        cheap = others & (walks.costs <= cost)
        cheaper = float((weights[cheap] / walks.inclusion[cheap]).sum())
        # With nothing cheaper in the sample the rank is somewhere below what the sample can resolve: a bound.
        is_bound = cheaper == 0.0 and interval[1] > itself
        amount = interval[1] if is_bound else min(interval[1], max(interval[0], itself + cheaper))
        estimates.append(_estimate(case, i, walks, cheap, amount, interval, rests_on, is_bound))
    return estimates


def _estimate(
    case: TreeCase,
    i: int,
    walks: DistinctWalks,
    cheap: NDArray[np.bool_],
    amount: float,
    interval: tuple[float, float],
    rests_on: str,
    is_bound: bool,
) -> ExposureEstimate:
    if case.prior is None:
        return case.estimate(i, "importance", amount, interval, walks.expansions, rests_on, is_bound=is_bound)
    rank = min(float(case.size), 1.0 + float((1.0 / walks.inclusion[cheap]).sum()))
    return case.estimate(i, "importance", rank, interval, walks.expansions, rests_on, mass=amount, is_bound=is_bound)


def _heaviest(case: TreeCase, i: int, walks: DistinctWalks, weights: Floats, missed: float) -> float:
    """The largest spread that a single secret which is not in the sample may stand for.

    Args:
        case: The secrets.
        i: Which of them.
        walks: The sample.
        weights: What its secrets weigh in the unit of number i.
        missed: The smallest inclusion probability of a secret that is as cheap.
    """
    spread = math.sqrt(1.0 - missed) / missed
    if case.prior is None:
        return spread
    if case.prior.proposes:
        return walks.heaviest_mass(missed) * case.whole(i)
    return max(0.0, case.whole(i) - float(weights.sum())) * spread  # all that is left may be a single secret


def _interval(
    surely: tuple[float, float], perhaps: tuple[float, float], heaviest: float, confidence: float
) -> tuple[float, float]:
    """An interval for a sum of weights, from estimates and variances of what counts for certain and what may count."""
    low, _ = weighted_count_interval(*surely, heaviest, confidence)
    _, high = weighted_count_interval(*perhaps, heaviest, confidence)
    return low, high


def _sum_and_variance(inclusion: Floats, weights: Floats) -> tuple[float, float]:
    variance = weights**2 * (1.0 - inclusion) / inclusion**2
    return float((weights / inclusion).sum()), float(variance.sum())
