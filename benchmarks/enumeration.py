"""All secrets of a format: one walk through the tree against full forward passes."""

from __future__ import annotations

from benchmarks.full_passes import full_pass_costs
from benchmarks.memory import memory_row, peak_memory_of
from benchmarks.models import Subject
from benchmarks.table import Row, Target, amount
from benchmarks.timing import best_of_both
from lightning_exposure.walks import enumerate_leaves


def benchmark_enumeration(
    subject: Subject, *, digits: int = 6, fully: int = 8_192, batch_size: int = 4_096, repeats: int = 3
) -> list[Row]:
    """Enumerate all secrets with so many digits.

    Args:
        subject: The model.
        digits: Of the secrets.
        fully: How many of them to score with full passes; their time is scaled up.
        batch_size: Of both.
        repeats: The fastest of so many runs counts, of both.
    """
    tree = subject.tree(digits, batch_size)
    some = tree.format.sample(fully, seed=2)
    full_pass_costs(subject, tree.format, some[:batch_size], batch_size)  # the first run of anything is slower
    (leaves, expansions), _, walk_seconds, some_seconds = best_of_both(
        repeats,
        lambda: enumerate_all(subject, digits, batch_size),
        lambda: full_pass_costs(subject, tree.format, some, batch_size),
    )
    if leaves != tree.size:
        raise RuntimeError(f"the walk came to {leaves:,} secrets of {tree.size:,}.")
    full_seconds = some_seconds * tree.size / len(some)
    what = f"all {tree.size:,} secrets of {digits} digits"
    return [
        Row(
            f"{what}: faster than full passes",
            full_seconds / walk_seconds,
            "x",
            Target("at least", 8.0),
            f"{amount(walk_seconds, 's')} against {amount(full_seconds, 's')} (scaled from {len(some):,} secrets); "
            f"{expansions:,} expansions",
        ),
        memory_row(what, peak_memory_of(enumerate_all, subject, digits, batch_size)),
    ]


def enumerate_all(subject: Subject, digits: int, batch_size: int) -> tuple[int, int]:
    """Walk the whole tree, keeping nothing; how many secrets there were, and how many expansions it took."""
    found = expansions = 0
    for leaves in enumerate_leaves(subject.tree(digits, batch_size)):
        found += len(leaves.costs)
        expansions = leaves.expansions
    return found, expansions
