"""What precision costs: expansions and errors of `measure_exposure(..., precision=)`, where the truth is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.estimates import RANKS, KnownSecret, known_secrets
from benchmarks.models import Subject
from benchmarks.table import Row, Target
from lightning_exposure import ExposureEstimate, SecretTree, measure_exposure

PRECISIONS = (2.0, 1.0, 0.5, 0.25)
_NO_LIMIT = 10**9


@dataclass(frozen=True)
class Outcome:
    """What one precision came to, over several seeds.

    Attributes:
        expansions: Of one measurement of all secrets, on average.
        error: The mean of |bits - exact|.
        covered: Which share of the intervals hold the exact value.
        reached: Which share of the intervals are as narrow as was asked for.
        exact: Which share of the answers are exact counts.
    """

    expansions: float
    error: float
    covered: float
    reached: float
    exact: float


def benchmark_precision(
    subject: Subject,
    *,
    digits: int = 6,
    ranks: Sequence[int] = RANKS,
    precisions: Sequence[float] = PRECISIONS,
    seeds: int = 5,
) -> list[Row]:
    """Expansions, errors and coverage, in the model with memorized canaries and in one that was never trained.

    Args:
        subject: The model.
        digits: Of the secrets, few enough to enumerate all of them.
        ranks: Of the secrets that are measured, all in one call.
        precisions: In bits.
        seeds: How many measurements at each precision.
    """
    rows: list[Row] = []
    for name, model in (("trained", subject), ("flat", subject.untrained())):
        rows += _rows(name, model.tree(digits), ranks, precisions, seeds)
    return rows


def _rows(name: str, tree: SecretTree, ranks: Sequence[int], precisions: Sequence[float], seeds: int) -> Iterator[Row]:
    known = known_secrets(tree, ranks)
    what = f"{name} model, {len(known)} secrets of ranks {known[0].rank:,} to {known[-1].rank:,} of {tree.size:,}"
    texts = [secret.text for secret in known]
    counted = total_expansions(measure_exposure(tree, texts, "exact", budget=_NO_LIMIT))
    for precision in precisions:
        outcome = _outcome(tree, known, precision, seeds)
        yield Row(
            f"{what}, precision {precision:g}: expansions",
            outcome.expansions,
            "expansions",
            None,
            f"{counted / outcome.expansions:.1f} times fewer than an exact count of all, {counted:,}; "
            f"{outcome.reached:.0%} of the intervals are as narrow as that, {outcome.exact:.0%} of the answers exact",
        )
        yield Row(
            f"{what}, precision {precision:g}: mean absolute error",
            outcome.error,
            "bits",
            Target("below", precision),
            f"{seeds} seeds; {outcome.covered:.0%} of the intervals hold the exact value",
        )


def _outcome(tree: SecretTree, known: Sequence[KnownSecret], precision: float, seeds: int) -> Outcome:
    texts = [secret.text for secret in known]
    runs = [measure_exposure(tree, texts, precision=precision, seed=seed) for seed in range(seeds)]
    pairs = [(estimate, secret) for run in runs for estimate, secret in zip(run, known, strict=True)]
    return Outcome(
        expansions=float(np.mean([total_expansions(run) for run in runs])),
        error=float(np.mean([abs(estimate.bits - secret.bits) for estimate, secret in pairs])),
        covered=float(np.mean([covers(estimate, secret.bits) for estimate, secret in pairs])),
        reached=float(np.mean([estimate.high - estimate.low <= precision for estimate, _ in pairs])),
        exact=float(np.mean([estimate.method == "exact" for estimate, _ in pairs])),
    )


def total_expansions(estimates: Sequence[ExposureEstimate]) -> int:
    """Of one call: each estimate names its own and those it shares, so the largest number is all of them."""
    return max(estimate.expansions for estimate in estimates)


def covers(estimate: ExposureEstimate, bits: float) -> bool:
    """Whether an interval holds the exact value, but for the rounding of logarithms."""
    return estimate.low - 1e-9 <= bits <= estimate.high + 1e-9
