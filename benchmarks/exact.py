"""The exact exposure of one secret among 10^9, without looking at 10^9 secrets."""

from __future__ import annotations

import numpy as np

from benchmarks.memory import memory_row, peak_memory_of
from benchmarks.models import Subject
from benchmarks.table import Row, Target, amount
from benchmarks.timing import best_of
from lightning_exposure import ExposureEstimate, SecretTree, measure_exposure
from lightning_exposure.errors import BudgetError
from lightning_exposure.walks import enumerate_leaves

_EXPANSIONS = 100_000
_RANKS = range(1_000, 10_000)
"""Where the harder one of the two secrets should be: memorized, but far from being the first guess."""
_NO_LIMIT = 10**9
"""The benchmark reports a count that takes too many expansions, rather than to give up on it."""


def benchmark_exact(subject: Subject, *, ranks: range = _RANKS, repeats: int = 3) -> list[Row]:
    """Count the exact rank of a secret that is memorized in part, and of the model's first guess.

    Args:
        subject: The model.
        ranks: Where the rank of the first one should be.
        repeats: The fastest of so many runs counts.
    """
    first, harder = _choose_secrets(subject, ranks)
    # The first guess is found along the way to the harder one: its memory would tell nothing new.
    memory = memory_row("the same count", peak_memory_of(exact_exposure, subject, harder))
    return [*_rows(subject, harder, repeats), memory, *_rows(subject, first, repeats)]


def exact_exposure(subject: Subject, secret: str) -> ExposureEstimate:
    """The exact exposure of one secret."""
    return _count(subject.tree(subject.recipe.digits), secret)


def _count(tree: SecretTree, secret: str) -> ExposureEstimate:
    (estimate,) = measure_exposure(tree, [secret], "exact", budget=_NO_LIMIT)
    return estimate


def _rows(subject: Subject, secret: str, repeats: int) -> list[Row]:
    tree = subject.tree(subject.recipe.digits)
    estimate, seconds = best_of(repeats, lambda: _count(tree, secret))
    times_seen = {canary.text: canary.repetitions for canary in subject.canaries}.get(secret, 0)
    what = f"exact exposure at rank {estimate.rank:,} of {tree.size:,}"
    return [
        Row(
            f"{what}: model evaluations",
            estimate.expansions,
            "expansions",
            Target("below", _EXPANSIONS),
            f"{estimate.bits:.2f} of {estimate.size_bits:.2f} bits; "
            + (f"a canary inserted {times_seen} times" if times_seen else "no canary, a secret picked for its rank"),
        ),
        Row(
            f"{what}: fewer than brute force",
            tree.size / estimate.expansions,
            "x",
            Target("at least", 1000.0),
            f"in {amount(seconds, 's')}",
        ),
    ]


def _choose_secrets(subject: Subject, ranks: range) -> tuple[str, str]:
    """A secret of rank 1, and one with a rank within the range: canaries, if there are any."""
    tree = subject.tree(subject.recipe.digits)
    estimates = measure_exposure(tree, [canary.text for canary in subject.canaries], "auto", budget=_EXPANSIONS)
    by_rank = {estimate.rank: estimate.secret for estimate in estimates if estimate.method in ("exact", "counted")}
    first = by_rank[1] if 1 in by_rank else secret_near_rank(tree, 1)
    fitting = [rank for rank in by_rank if rank in ranks]
    return first, by_rank[max(fitting)] if fitting else secret_near_rank(tree, (ranks.start + ranks.stop) // 2)


def secret_near_rank(tree: SecretTree, rank: int) -> str:
    """A secret of this rank, or of the largest one that a count within the budget comes to."""
    paths, costs, bound = [], np.empty(0), 1.0
    while len(costs) < min(rank, tree.size):
        try:
            batches = list(enumerate_leaves(tree, bound, budget=_EXPANSIONS))
        except BudgetError:
            break
        paths = [path for batch in batches for path in batch.paths]
        costs = np.concatenate([batch.costs for batch in batches])
        bound += 1.0
    if not paths:
        raise RuntimeError(f"no secret has a rank that {_EXPANSIONS:,} expansions can count: train the model longer.")
    return tree.text(paths[np.argsort(costs)[min(rank, len(paths)) - 1]])
