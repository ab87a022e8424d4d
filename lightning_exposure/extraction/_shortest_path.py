"""Shortest path: cheapest first, with a proof that nothing is more likely."""

from __future__ import annotations

from lightning_exposure.extraction._attacks import ATTACKS, Found
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, Stop, best_first


@ATTACKS.register("shortest_path", priority=3)
def shortest_path(
    tree: SecretTree,
    top_k: int,
    *,
    budget: int | None = 1_000_000,
    seconds: float | None = None,
    largest_batch: int = 4096,
    stop: Stop = "proof",
    memory: int,
    progress: Progress | None,
) -> Found:
    """Cheapest first, until nothing better can exist.

    Args:
        tree: The model, the format and the tokenizer.
        top_k: How many candidates.
        budget: How many expansions at most.
        seconds: How much time at most.
        largest_batch: How many nodes to expand at once at most.
        stop: When to stop: once it is proven that nothing is more likely, or by the rule of the paper.
        memory: The limit for model states and open nodes, in bytes.
        progress: Called after each batch.
    """
    found = best_first(
        tree,
        top_k,
        budget=budget,
        seconds=seconds,
        memory=memory,
        largest_batch=largest_batch,
        stop=stop,
        progress=progress,
    )
    return found, None
