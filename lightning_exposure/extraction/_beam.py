"""Beam search: level by level, keeping the best."""

from __future__ import annotations

from lightning_exposure.extraction._attacks import ATTACKS, Found
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, beam


@ATTACKS.register("beam", priority=1)
def beam_search(tree: SecretTree, top_k: int, *, width: int = 100, memory: int, progress: Progress | None) -> Found:
    """Level by level, keeping the best nodes of each.

    Args:
        tree: The model, the format and the tokenizer.
        top_k: How many candidates.
        width: How many nodes to keep at each level.
        memory: The limit for model states, in bytes.
        progress: Called after each level.
    """
    return beam(tree, top_k, width=width, memory=memory, progress=progress), None
