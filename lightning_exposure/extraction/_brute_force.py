"""Brute force: every secret there is."""

from __future__ import annotations

import math

from lightning_exposure.errors import BudgetError
from lightning_exposure.extraction._attacks import ATTACKS, Found
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, SearchResult, enumerate_leaves
from lightning_exposure.walks.best import BestLeaves


@ATTACKS.register("brute_force", priority=2)
def brute_force(
    tree: SecretTree, top_k: int, *, budget: int | None = None, memory: int, progress: Progress | None
) -> Found:
    """Every secret; what ended it early leaves no bound, for it goes depth-first.

    Args:
        tree: The model, the format and the tokenizer.
        top_k: How many candidates.
        budget: How many expansions at most.
        memory: The limit for model states, in bytes.
        progress: Called after each batch.
    """
    best = BestLeaves(top_k)
    expansions, ended_by = 0, "proof"
    try:
        for leaves in enumerate_leaves(tree, budget=budget, memory=memory):
            expansions = leaves.expansions
            cheap = leaves.costs <= best.limit
            if cheap.any():
                best.add(leaves.paths[cheap], leaves.costs[cheap])
            if progress is not None:
                progress(expansions, 0, float(best.costs.min(initial=math.inf)))
    except BudgetError:
        ended_by = "expansions"
    except KeyboardInterrupt:
        ended_by = "interrupt"
    at_least = float(best.costs.max(initial=0.0)) if ended_by == "proof" else 0.0
    return SearchResult(best.paths, best.costs, expansions, ended_by, at_least), None
