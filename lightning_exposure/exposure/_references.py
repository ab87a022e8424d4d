"""Exposure among secrets drawn uniformly: by rank, or by the paper's skew-normal extrapolation."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.exposure._case import Case
from lightning_exposure.exposure.intervals import normal_margin, proportion_interval
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.exposure.skewnormal import SkewNormal, warn_if_poor
from lightning_exposure.walks import Rounding, UniformSample, score, uniform_walks


def measure_by_sampling(case: Case) -> list[ExposureEstimate]:
    """Rank among secrets drawn uniformly."""
    return estimates_from_references(case, draw_references(case, case.seed), case.confidence)


def draw_references(case: Case, seed: int) -> UniformSample:
    """Secrets drawn uniformly from all others, scored."""
    return uniform_walks(case.tree, case.samples, seed=seed, exclude=case.secrets, memory=case.memory)


class GrowingReferences:
    """Secrets drawn uniformly from all others; a larger sample holds the smaller one and scores only what it adds.

    Args:
        case: The secrets that are measured, and how many references there may be at most.
        seed: Of the draw.
    """

    def __init__(self, case: Case, seed: int) -> None:
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
    drawn, unseen = len(sample.costs), case.tree.size - len(case)
    estimates = []
    for i in range(len(case)):
        known = rank_counts(case.costs, i, case.rounding)
        hits = rank_counts(np.append(sample.costs, case.costs[i]), drawn, case.rounding)
        if drawn == unseen:
            ranks = [1 + a + b for a, b in zip(known, hits, strict=True)]
            estimates.append(case.counted(i, ranks[0], ranks[1], ranks[2], sample.expansions))
            continue
        rank, interval, is_bound = rank_among_references(known, hits, drawn, unseen, confidence)
        rests_on = f"{drawn:,} secrets drawn uniformly, and nothing else"
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


def measure_by_skew_normal(case: Case) -> list[ExposureEstimate]:
    """The paper's extrapolation; its interval holds only if the log-perplexities really are skew-normal."""
    sample = draw_references(case, case.seed)
    possible = sample.costs[np.isfinite(sample.costs)]
    # What the model holds impossible has no log-perplexity to fit; it is more expensive than any secret measured.
    share = -math.log2(len(possible) / len(sample.costs)) if len(possible) else 0.0
    fit = SkewNormal.fit(possible)
    warn_if_poor(fit)
    errors = fit.standard_errors(case.costs, possible)
    estimates = []
    for i, (tail, error) in enumerate(zip(fit.exposure(case.costs), errors, strict=True)):
        bits = float(tail) + share
        rank = max(sys.float_info.min, 2.0 ** (case.tree.bits - bits))
        # An error that cannot be computed says nothing is known: as wide as the whole scale, never as narrow as 0.
        margin = normal_margin(float(error), case.confidence) if math.isfinite(error) else case.tree.bits
        rests_on = f"a skew-normal fit to {len(possible):,} secrets drawn uniformly, read off where there are no data"
        estimates.append(
            replace(
                case.estimate(i, "skewnormal", rank, (rank, rank), sample.expansions, rests_on),
                bits=bits,
                low=max(0.0, bits - margin),
                high=bits + margin,
                ks_statistic=fit.ks_statistic,
                ks_pvalue=fit.ks_pvalue,
            )
        )
    return estimates
