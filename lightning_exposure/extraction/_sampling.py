"""Sampling: let the model speak, and keep the best of what it says."""

from __future__ import annotations

import math

import numpy as np

from lightning_exposure._checks import whole_number
from lightning_exposure.extraction._attacks import ATTACKS, Found
from lightning_exposure.tokenization.paths import PathFinder, path_keys
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, SearchResult, model_walks
from lightning_exposure.walks.best import BestLeaves

_WALKS_AT_ONCE = 16_384


@ATTACKS.register("sampling", priority=0)
def sampling(
    tree: SecretTree,
    top_k: int,
    *,
    samples: int = 10_000,
    temperature: float = 1.0,
    seed: int = 0,
    target: str | None = None,
    memory: int,
    progress: Progress | None,
) -> Found:
    """The best of the different secrets that the model generates.

    Args:
        tree: The model, the format and the tokenizer.
        top_k: How many candidates.
        samples: How many texts to draw.
        temperature: The sampling temperature.
        seed: The random seed.
        target: A secret: report which draw generates it first.
        memory: The limit for model states, in bytes.
        progress: Called after each batch of draws.
    """
    whole_number("samples", samples, at_least=1)
    generator = np.random.default_rng(seed)
    goal = None if target is None else PathFinder(tree.paths([target]))
    best, seen = BestLeaves(top_k), np.empty(0, dtype=np.uint64)
    expansions, first_seen, ended_by = 0, None, "samples"
    try:
        for done in range(0, samples, _WALKS_AT_ONCE):
            count = min(_WALKS_AT_ONCE, samples - done)
            walks = model_walks(tree, count, seed=generator, temperatures=(temperature,), memory=memory)
            expansions += walks.expansions
            if goal is not None and first_seen is None:
                hits = [row for _, row in goal.find(walks.paths) if walks.complete[row]]
                first_seen = done + 1 + min(hits) if hits else None
            keys = path_keys(walks.paths)
            _, new = np.unique(np.where(walks.complete, keys, np.uint64(0)), return_index=True)
            new = new[walks.complete[new] & ~np.isin(keys[new], seen)]
            seen = np.union1d(seen, keys[new])
            best.add(walks.paths[new], walks.costs[new])
            if progress is not None:
                progress(expansions, 0, float(best.costs.min(initial=math.inf)))
    except KeyboardInterrupt:
        ended_by = "interrupt"
    return SearchResult(best.paths, best.costs, expansions, ended_by, 0.0), first_seen
