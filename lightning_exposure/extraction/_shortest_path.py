"""Shortest path: cheapest first, with a proof that nothing is more likely."""

from __future__ import annotations

from lightning_exposure.extraction._attacks import ATTACKS, Found
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, best_first


@ATTACKS.register("shortest_path", priority=3)
def shortest_path(
    tree: SecretTree,
    top_k: int,
    *,
    budget: int | None = 1_000_000,
    seconds: float | None = None,
    largest_batch: int = 4096,
    stop: str = "proof",
    memory: int,
    progress: Progress | None,
) -> Found:
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
