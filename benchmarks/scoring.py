"""Many given secrets: shared prefixes against full forward passes."""

from __future__ import annotations

import numpy as np

from benchmarks.full_passes import full_pass_costs
from benchmarks.models import Subject
from benchmarks.table import Row, Target, amount
from benchmarks.timing import best_of, best_of_both
from lightning_exposure.walks import score

_SMALL_BATCH = 512


def benchmark_scoring(
    subject: Subject, *, secrets: int = 65_536, fully: int = 8_192, batch_size: int = 4_096, repeats: int = 3
) -> list[Row]:
    """Score secrets drawn at random.

    Args:
        subject: The model.
        secrets: How many to score along the tree.
        fully: How many of them to score with full passes; their time is scaled up.
        batch_size: Of both.
        repeats: The fastest of so many runs counts, of both.
    """
    tree = subject.tree(subject.recipe.digits, batch_size)
    texts = tree.format.sample(secrets, seed=1)
    some = texts[:fully]
    score(tree, some)  # the first run of anything is slower
    shared, full, shared_seconds, some_seconds = best_of_both(
        repeats,
        lambda: score(tree, texts),
        lambda: full_pass_costs(subject, tree.format, some, batch_size),
    )
    full_seconds = some_seconds * len(texts) / len(some)
    # Small batches stay in the processor's cache, which helps long passes more than single steps.
    _, small_seconds = best_of(repeats, lambda: full_pass_costs(subject, tree.format, some, _SMALL_BATCH))
    what = f"{secrets:,} secrets of {subject.recipe.digits} digits"
    return [
        Row(
            f"{what}: faster than full passes",
            full_seconds / shared_seconds,
            "x",
            Target("at least", 6.0),
            f"{amount(shared_seconds, 's')} against {amount(full_seconds, 's')} (scaled from {len(some):,} secrets)",
        ),
        Row(
            f"{what}: faster than full passes in batches of {_SMALL_BATCH}",
            small_seconds * len(texts) / len(some) / shared_seconds,
            "x",
            None,
            f"the others in batches of {batch_size:,}",
        ),
        Row(
            f"{what}: largest difference of a cost",
            float(np.abs(shared.costs[: len(some)] - full).max()),
            "bits",
            Target("below", 0.001),
            f"of {full.min():.1f} to {full.max():.1f} bits; {shared.expansions:,} expansions",
        ),
    ]
