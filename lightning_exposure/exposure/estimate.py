"""`measure_exposure`: how exposed secrets are, exactly where that is affordable, without bias where it is not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.errors import ArgumentError, BudgetError
from lightning_exposure.exposure.intervals import (
    check_confidence,
    normal_margin,
    proportion_interval,
    weighted_count_interval,
)
from lightning_exposure.exposure.skewnormal import SkewNormal, warn_if_poor
from lightning_exposure.language.paths import PathFinder
from lightning_exposure.language.tree import SecretTree
from lightning_exposure.walks import (
    DEFAULT_MEMORY,
    DistinctWalks,
    count_ranks,
    distinct_walks,
    log_weights,
    score,
    uniform_walks,
)

_MARGIN = 1.25
"""The number of expansions an exact count will need is itself estimated: how much more must fit in the budget."""


_LARGEST_BITS = 500
"""Estimated ranks and their variances are floating-point numbers, and those end at 2^1024."""


@dataclass(frozen=True)
class ExposureEstimate:
    """The exposure of one secret. All numbers are finite, except the log-perplexity of an impossible secret.

    Attributes:
        secret: The text.
        bits: Exposure, `log2 |R| - log2 rank`.
        low: The lower end of the interval; equal to `bits` where the method is exact.
        high: The upper end.
        method: How it was found: "exact", "counted" (every secret was counted, but rounding leaves ties undecided),
            "importance", "sampling" or "skewnormal".
        rank: How many secrets of the format cost at most as much, this one included: an int where it is exact.
        log_perplexity: What the secret costs, in bits.
        size_bits: log2 |R|, the largest possible exposure.
        is_bound: Whether `bits` is only a lower bound: no reference was as cheap as the secret.
        confidence: Of the interval.
        expansions: How many nodes the model read for this answer and the others that share its walks.
        ks_statistic: Skew-normal only: Kolmogorov-Smirnov distance of the fit.
        ks_pvalue: Skew-normal only: its p-value.
        rests_on: What the interval rests on, in words.
    """

    secret: str
    bits: float
    low: float
    high: float
    method: str
    rank: int | float
    log_perplexity: float
    size_bits: float
    is_bound: bool
    confidence: float
    expansions: int
    ks_statistic: float | None = None
    ks_pvalue: float | None = None
    rests_on: str = ""

    def __str__(self) -> str:
        """One line for people."""
        sign = ">=" if self.is_bound else "="
        interval = "" if self.low == self.high else f" [{self.low:.2f}, {self.high:.2f}]"
        return (
            f"{self.secret!r}: exposure {sign} {self.bits:.2f}{interval} of {self.size_bits:.2f} bits ({self.method})"
        )

    def to_dict(self) -> dict[str, object]:
        """All attributes, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Case:
    """Different secrets of one tree, scored, and how to measure them."""

    tree: SecretTree
    secrets: list[str]
    paths: NDArray[np.int32]
    costs: NDArray[np.float64]
    expansions: int
    budget: int
    samples: int
    seed: int
    confidence: float
    memory: int
    progress: Callable[[int], None] | None

    def only(self, which: Sequence[int]) -> _Case:
        """The same for some of the secrets."""
        return replace(
            self,
            secrets=[self.secrets[i] for i in which],
            paths=self.paths[list(which)],
            costs=self.costs[list(which)],
        )

    def estimate(
        self, i: int, method: str, rank: int | float, interval: tuple[float, float] | None, expansions: int
    ) -> ExposureEstimate:
        """An estimate from a rank and an interval of ranks; None: the rank is exact."""
        low_rank, high_rank = (rank, rank) if interval is None else interval
        return ExposureEstimate(
            secret=self.secrets[i],
            bits=self._bits(rank),
            low=self._bits(high_rank),
            high=self._bits(low_rank),
            method=method,
            rank=rank,
            log_perplexity=float(self.costs[i]),
            size_bits=self.tree.bits,
            is_bound=False,
            confidence=self.confidence,
            expansions=expansions,
        )

    def _bits(self, rank: int | float) -> float:
        """A rank as exposure, between 0 and log2 |R|."""
        return min(self.tree.bits, max(0.0, self.tree.bits - math.log2(rank)))


def measure_exposure(
    tree: SecretTree,
    secrets: Sequence[str],
    method: str = "auto",
    budget: int = 100_000,
    samples: int = 4096,
    seed: int = 0,
    *,
    precision: float | None = None,
    confidence: float = 0.95,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int], None] | None = None,
) -> list[ExposureEstimate]:
    """The exposure of one or many secrets of a format, in the order given.

    Secrets share the walks: one sample answers for all of them, and so does one exact count.

    Args:
        tree: The model, the format and the tokenizer.
        secrets: Complete texts of the format.
        method: "auto": a sample first; then an exact count of those secrets for which it will fit in the budget.
            "exact": an exact count, or an error. "importance": the unbiased estimate. "sampling": rank among secrets
            drawn uniformly. "skewnormal": the paper's extrapolation.
        budget: The largest number of expansions of an exact count.
        samples: How many walks an estimate takes.
        seed: Of the walks.
        precision: Stop as soon as the interval of every secret is at most so many bits wide; None: spend what
            `samples` and `budget` allow.
        confidence: Of the intervals.
        memory: The limit for model states, in bytes.
        progress: Called with the number of expansions of the exact count so far.

    Raises:
        SecretError: A text is not a secret of the format.
        ArgumentError: Any other argument is out of range; it is named.
        BudgetError: method="exact", and the budget did not suffice.
        ModelError: The model returned NaN, or logits of a wrong shape.

    Example:
        >>> import torch
        >>> from lightning_exposure import SecretFormat
        >>> from lightning_exposure.language import CharTokenizer
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Linear(8, 14))
        >>> tree = SecretTree(model, SecretFormat("pin ####"), CharTokenizer.from_text("pin 0123456789"))
        >>> estimate, = measure_exposure(tree, ["pin 1234"])
        >>> estimate.method, 0 <= estimate.bits <= tree.bits
        ('exact', True)
    """
    check_measurement(method, budget, samples, confidence, precision)
    _check_secrets(tree, secrets)
    distinct = list(dict.fromkeys(secrets))
    if not distinct:
        return []
    scored = score(tree, distinct, memory=memory)
    case = _Case(
        tree=tree,
        secrets=distinct,
        paths=tree.paths(distinct),
        costs=scored.costs,
        expansions=scored.expansions,
        budget=budget,
        samples=samples,
        seed=seed,
        confidence=confidence,
        memory=memory,
        progress=progress,
    )
    possible = np.flatnonzero(np.isfinite(scored.costs)).tolist()
    found: dict[str, ExposureEstimate] = {}
    for i in set(range(len(distinct))) - set(possible):
        # The model gives it no probability at all: every other secret costs at most as much.
        found[distinct[i]] = case.estimate(i, "exact", tree.size, None, scored.expansions)
    if possible:
        found.update((estimate.secret, estimate) for estimate in METHODS[method](case.only(possible)))
    return [found[secret] for secret in secrets]


def check_measurement(
    method: str, budget: int, samples: int, confidence: float, precision: float | None = None
) -> None:
    """Refuse arguments that no measurement can work with.

    Raises:
        ArgumentError: Names the argument.
    """
    if method not in METHODS:
        raise ArgumentError(f"method is {method!r}; expected one of {', '.join(map(repr, METHODS))}.")
    if budget < 1:
        raise ArgumentError(f"budget is {budget!r}; expected at least 1 expansion. To never count, use 'importance'.")
    if samples < 1:
        raise ArgumentError(f"samples is {samples!r}; expected at least 1 walk.")
    check_confidence(confidence)
    if precision is not None and not 0.0 < precision < math.inf:
        raise ArgumentError(
            f"precision is {precision!r}; expected a positive number of bits, for example 0.25, or None for as precise "
            "as samples and budget allow."
        )


def _check_secrets(tree: SecretTree, secrets: Sequence[str]) -> None:
    if isinstance(secrets, str):
        raise ArgumentError(f"secrets is the text {secrets!r}; expected a list of texts: [{secrets!r}].")
    if tree.bits > _LARGEST_BITS:
        raise ArgumentError(
            f"tree has 2^{tree.bits:.0f} secrets; ranks can be measured up to 2^{_LARGEST_BITS}. Use fewer blanks."
        )


def _exact(case: _Case) -> list[ExposureEstimate]:
    ranks = count_ranks(
        case.tree, case.paths, case.costs, budget=case.budget, memory=case.memory, progress=case.progress
    )
    expansions = case.expansions + ranks.expansions
    return [case.estimate(i, "exact", rank, None, expansions) for i, rank in enumerate(ranks.ranks)]


def _importance(case: _Case) -> list[ExposureEstimate]:
    return _from_walks(case, _walks(case))


def _walks(case: _Case) -> DistinctWalks:
    return distinct_walks(case.tree, case.samples, seed=case.seed, bound=_bound(case), memory=case.memory)


def _bound(case: _Case) -> float:
    """Nothing above this cost is of interest; the slack keeps the secrets below it, whatever the rounding."""
    return float(case.costs.max()) + 2.0 * case.tree.tie


def _from_walks(case: _Case, walks: DistinctWalks) -> list[ExposureEstimate]:
    """Ranks from a weighted sample: the secret itself is counted exactly, only the others are estimated."""
    own = dict(PathFinder(case.paths).find(walks.paths))
    expansions = case.expansions + walks.expansions
    own_inclusion = np.ones(len(case.costs))
    if not walks.complete:
        weights = log_weights(case.tree, case.paths, bound=_bound(case), memory=case.memory)
        own_inclusion = walks.inclusion_of(weights)
    estimates = []
    for i, cost in enumerate(case.costs):
        cheaper = walks.costs <= cost + case.tree.tie
        if i in own:
            cheaper[own[i]] = False
        inclusion = walks.inclusion[cheaper]
        if walks.complete:
            estimates.append(case.estimate(i, "exact", 1 + int(cheaper.sum()), None, expansions))
            continue
        others = float((1.0 / inclusion).sum())
        variance = float(((1.0 - inclusion) / inclusion**2).sum())
        missed = min(own_inclusion[i], walks.least_inclusion(float(cost)), inclusion.min(initial=1.0))
        heaviest = math.sqrt(1.0 - missed) / missed
        low, high = weighted_count_interval(others, variance, heaviest, case.confidence)
        # What was found is certain; and no rank is above |R|.
        interval = (1.0 + max(low, len(inclusion)), min(float(case.tree.size), 1.0 + high))
        rank = min(float(case.tree.size), 1.0 + others)
        estimates.append(case.estimate(i, "importance", rank, interval, expansions))
    return estimates


def _auto(case: _Case) -> list[ExposureEstimate]:
    """The sample first: it is cheap, and it tells what an exact count would cost."""
    walks = _walks(case)
    estimates = _from_walks(case, walks)
    if walks.complete:
        return estimates
    needed = [_MARGIN * walks.expected_expansions(float(cost) + case.tree.tie) for cost in case.costs]
    affordable = [i for i, expansions in enumerate(needed) if expansions <= case.budget]
    if not affordable:
        return estimates
    try:
        exact = _exact(case.only(affordable))
    except BudgetError:
        return estimates  # the prediction was too low: the estimates stand
    for i, estimate in zip(affordable, exact, strict=True):
        estimates[i] = replace(estimate, expansions=estimate.expansions + walks.expansions)
    return estimates


def _sampling(case: _Case) -> list[ExposureEstimate]:
    """Rank among secrets drawn uniformly; the other given secrets are known, and counted as they are."""
    sample = uniform_walks(case.tree, case.samples, seed=case.seed, exclude=case.secrets, memory=case.memory)
    expansions = case.expansions + sample.expansions
    drawn, unseen = len(sample.costs), case.tree.size - len(case.secrets)
    ordered = np.sort(sample.costs)
    estimates = []
    for i, cost in enumerate(case.costs):
        limit = cost + case.tree.tie
        known = max(1, int((case.costs <= limit).sum()))
        hits = int(np.searchsorted(ordered, limit, side="right"))
        if drawn == unseen:
            estimates.append(case.estimate(i, "exact", known + hits, None, expansions))
            continue
        low, high = proportion_interval(hits, drawn, case.confidence)
        interval = (known + max(hits, unseen * low), known + unseen * high)
        if hits:
            estimates.append(case.estimate(i, "sampling", known + unseen * hits / drawn, interval, expansions))
        else:  # no reference is as cheap: the rank is somewhere below what they can resolve
            bound = case.estimate(i, "sampling", interval[1], interval, expansions)
            estimates.append(replace(bound, is_bound=True))
    return estimates


def _skew_normal(case: _Case) -> list[ExposureEstimate]:
    """The paper's extrapolation; its interval holds only if the log-perplexities really are skew-normal."""
    sample = uniform_walks(case.tree, case.samples, seed=case.seed, exclude=case.secrets, memory=case.memory)
    fit = SkewNormal.fit(sample.costs)
    warn_if_poor(fit)
    errors = fit.standard_errors(case.costs, sample.costs)
    estimates = []
    for i, (bits, error) in enumerate(zip(fit.exposure(case.costs), errors, strict=True)):
        rank = max(sys.float_info.min, 2.0 ** (case.tree.bits - float(bits)))
        # An error that cannot be computed says nothing is known: as wide as the whole scale, never as narrow as 0.
        margin = normal_margin(float(error), case.confidence) if math.isfinite(error) else case.tree.bits
        estimates.append(
            replace(
                case.estimate(i, "skewnormal", rank, None, case.expansions + sample.expansions),
                bits=float(bits),
                low=max(0.0, float(bits) - margin),
                high=float(bits) + margin,
                ks_statistic=fit.ks_statistic,
                ks_pvalue=fit.ks_pvalue,
            )
        )
    return estimates


METHODS: Mapping[str, Callable[[_Case], list[ExposureEstimate]]] = MappingProxyType(
    {"auto": _auto, "exact": _exact, "importance": _importance, "sampling": _sampling, "skewnormal": _skew_normal}
)
"""What `measure_exposure` can do."""
