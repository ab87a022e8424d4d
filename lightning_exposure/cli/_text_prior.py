"""`TextPrior`: what a reference with a tokenizer of its own says about texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import WeighedTree
from lightning_exposure.walks.score import follow
from lightning_exposure.walks.weighed_tree import WeighedChildren


class TextPrior:
    """The prior probabilities of texts by a reference that need not spell them as the model does.

    Runs on different texts have different alphabets, and so different tokenizers. A model and such a reference cannot
    read in step, but the probability of a text is the same number however it is spelt.

    Args:
        tree: Of the reference, with its own tokenizer.
    """

    def __init__(self, tree: SecretTree) -> None:
        # Weighed by itself: renormalised among the tokens that the format allows.
        self._tree = WeighedTree(tree, tree)

    def log2_probabilities(self, texts: Sequence[str], /) -> NDArray[np.float64]:
        """log2 of the prior probability of each text."""
        paths = self._tree.paths(texts)
        prior, lengths = np.zeros(len(paths)), (paths >= 0).sum(axis=1)
        for step in follow(self._tree, paths):
            children = step.children
            assert isinstance(children, WeighedChildren)
            level = 1 + (children.parent_paths >= 0).sum(axis=1)[children.parents[step.child]]
            ends = level == lengths[step.rows]
            prior[step.rows[ends]] = (children.reaching + children.ending)[step.child[ends]]
        return prior
