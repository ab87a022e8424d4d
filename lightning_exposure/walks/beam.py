"""Level by level, keeping the best N: fast, bounded, and without a proof unless nothing had to be dropped."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import whole_number
from lightning_exposure.tree.prompt import reads_prompt_once
from lightning_exposure.tree.secret_tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, POSSIBLE, rows_within
from lightning_exposure.walks.best import BestLeaves
from lightning_exposure.walks.best_first import SearchResult
from lightning_exposure.walks.progress import Progress


@reads_prompt_once
def beam(
    tree: SecretTree,
    top_k: int = 1,
    *,
    width: int = 100,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> SearchResult:
    """The best secrets that a beam of `width` nodes per level comes to.

    Args:
        tree: What to search.
        top_k: How many secrets.
        width: How many nodes are kept at each level.
        memory: The limit for the states of one batch, in bytes; besides, those of `width` nodes are kept.
        progress: Called after each level.
    """
    whole_number("top_k", top_k, at_least=1)
    whole_number("width", width, at_least=1)
    rows = rows_within(tree, memory, blocks=3)
    best = BestLeaves(top_k)
    blocks, expansions, cheapest_dropped, ended_by = [tree.root(POSSIBLE)], 1, math.inf, "proof"
    try:
        while blocks:
            for children in blocks:
                best.add_children(children)
            costs = np.concatenate([np.where(block.open, block.costs, math.inf) for block in blocks])
            order = np.argsort(costs, kind="stable")
            order = order[costs[order] < best.limit]
            if len(order) > width:
                cheapest_dropped = min(cheapest_dropped, float(costs[order[width]]))
            kept = np.sort(order[:width])
            if progress is not None:
                progress(expansions, len(kept), float(best.costs.min(initial=math.inf)))
            blocks = _grow(tree, blocks, kept, rows)
            expansions += len(kept)
    except KeyboardInterrupt:
        ended_by, cheapest_dropped = "interrupt", 0.0
    if ended_by == "proof" and cheapest_dropped < best.limit:
        ended_by = "width"
    return SearchResult(best.paths, best.costs, expansions, ended_by, min(cheapest_dropped, _last(best)))


def _grow(tree: SecretTree, blocks: list[Children], kept: NDArray[np.intp], rows: int) -> list[Children]:
    """Expand the kept children, numbered over all blocks, in batches of at most `rows`."""
    grown: list[Children] = []
    start = 0
    for block in blocks:
        mine = kept[(kept >= start) & (kept < start + len(block))] - start
        grown.extend(tree.expand(block.take(mine[at : at + rows]), POSSIBLE) for at in range(0, len(mine), rows))
        start += len(block)
    return grown


def _last(best: BestLeaves) -> float:
    """What the worst of the best costs: nothing that was seen and not kept is cheaper."""
    return float(best.costs.max(initial=0.0)) if best.limit == math.inf else best.limit
