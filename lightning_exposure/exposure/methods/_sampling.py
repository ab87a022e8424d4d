"""Sampling: rank among secrets drawn uniformly, or the share of what is as cheap among secrets drawn from a prior."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.exposure._case import Case, TreeCase
from lightning_exposure.exposure._prior import Draws
from lightning_exposure.exposure.intervals import proportion_interval
from lightning_exposure.exposure.methods._registered import METHODS
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tokenization.paths import PathFinder, path_keys, stack_rows
from lightning_exposure.walks import Rounding, UniformSample, score


def measure_by_sampling(case: Case) -> list[ExposureEstimate]:
    """Rank among secrets drawn uniformly; with a prior, the share among secrets drawn from it."""
    if isinstance(case, TreeCase) and case.prior is not None:
        return estimates_from_draws(case, draw_from_prior(case), case.confidence)
    return estimates_from_references(case, case.references(case.seed), case.confidence)


# Not as a decorator: it also measures what is not in a tree.
METHODS.register("sampling", priority=1)(measure_by_sampling)


class GrowingReferences:
    """Secrets drawn uniformly from all others; a larger sample holds the smaller one and scores only what it adds.

    Args:
        case: The secrets that are measured, and how many references there may be at most.
        seed: The random seed of the draw.
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


class GrowingDraws:
    """Secrets drawn from a prior, with replacement; a larger sample holds the smaller one and draws what it adds.

    Args:
        case: The secrets that are measured.
        seed: The random seed of the draw.
    """

    def __init__(self, case: TreeCase, seed: int) -> None:
        self._case = case
        self._generator = np.random.default_rng(seed)
        self._parts: list[Draws] = []
        self._drawn = 0
        self.expansions = 0

    def draw(self, samples: int) -> Draws:
        """So many of them, at least as many as the last time."""
        assert self._case.prior is not None
        if samples > self._drawn:
            more = self._case.prior.draw(samples - self._drawn, self._generator, self._case.memory)
            self._parts.append(more)
            self._drawn = samples
            self.expansions += more.expansions
        return Draws(
            stack_rows([part.paths for part in self._parts]),
            np.concatenate([part.costs for part in self._parts]),
            np.concatenate([part.prior for part in self._parts]),
            self._drawn,
            self.expansions,
        )


def draw_from_prior(case: TreeCase) -> Draws:
    """Secrets drawn from the prior of a case."""
    return GrowingDraws(case, case.seed).draw(case.samples)


def estimates_from_draws(case: TreeCase, draws: Draws, confidence: float) -> list[ExposureEstimate]:
    """Prior probabilities from secrets drawn from the prior (Clopper-Pearson); that of each secret itself is known."""
    own: dict[int, list[int]] = {}
    for i, row in PathFinder(case.paths).find(draws.paths):
        own.setdefault(i, []).append(row)
    _, first = np.unique(path_keys(draws.paths), return_index=True)
    is_first = np.zeros(len(draws.costs), dtype=bool)
    is_first[first] = True
    rests_on = f"{draws.drawn:,} secrets drawn from the prior, and nothing else"
    estimates = []
    for i, cost in enumerate(case.costs.tolist()):
        others = np.ones(len(draws.costs), dtype=bool)
        others[own.get(i, [])] = False
        surely = others & case.rounding.surely_as_cheap(draws.costs, cost)
        perhaps = others & case.rounding.perhaps_as_cheap(draws.costs, cost)
        cheap = others & (draws.costs <= cost)
        itself, whole = case.own(i), case.whole(i)
        weights = case.weights(i, draws.prior, len(draws.prior))
        found = float(weights[surely & is_first].sum())
        low = max(found, whole * proportion_interval(int(surely.sum()), draws.drawn, confidence)[0])
        high = whole * proportion_interval(int(perhaps.sum()), draws.drawn, confidence)[1]
        if high < low:  # what was found weighs more: the draws were unlucky, and only what they found is certain
            low = found
            high = max(found, whole - itself - float(weights[others & ~perhaps & is_first].sum()))
        interval = (min(whole, itself + low), min(whole, itself + high))
        # No draw is as cheap: the mass is somewhere below what they can resolve.
        is_bound = not cheap.any() and interval[1] > itself
        share = itself + whole * float(cheap.sum()) / draws.drawn
        mass = interval[1] if is_bound else min(interval[1], max(interval[0], share))
        rank = rank_from_draws(case, draws, cheap & is_first)
        estimate = case.estimate(
            i, "sampling", rank, interval, draws.expansions, rests_on, mass=mass, is_bound=is_bound
        )
        estimates.append(estimate)
    return estimates


def rank_from_draws(case: TreeCase, draws: Draws, cheaper: NDArray[np.bool_]) -> float:
    """An unbiased estimate of a rank, from different secrets that were drawn from a prior and are cheaper.

    Each stands for as many as the inverse of its probability to be drawn at least once.
    """
    chances = np.exp2(draws.prior[cheaper])
    with np.errstate(divide="ignore"):  # what has all of the probability is drawn for certain
        drawn_once = -np.expm1(draws.drawn * np.log1p(-np.minimum(chances, 1.0)))
    return min(float(case.size), 1.0 + float((1.0 / drawn_once).sum()))


def estimates_from_references(case: Case, sample: UniformSample, confidence: float) -> list[ExposureEstimate]:
    """Ranks among references; the other given secrets are known, and counted as they are."""
    drawn, unseen = len(sample.costs), case.size - len(case)
    estimates = []
    for i in range(len(case)):
        known = rank_counts(case.costs, i, case.rounding)
        hits = rank_counts(np.append(sample.costs, case.costs[i]), drawn, case.rounding)
        if drawn == unseen:
            whole, fewest, most = (1 + a + b for a, b in zip(known, hits, strict=True))
            estimates.append(case.counted(i, (whole, fewest, most), sample.expansions))
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
        confidence: The confidence level of the interval.
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
