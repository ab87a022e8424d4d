"""The best k secrets that a walk has come to so far."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization.paths import stack_rows
from lightning_exposure.tree.secret_tree import Children


class BestLeaves:
    """The cheapest `count` leaves seen, cheapest first; among equal costs the one with the smaller tokens.

    Args:
        count: How many to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.costs: NDArray[np.float64] = np.empty(0)
        self.paths: NDArray[np.int32] = np.empty((0, 0), dtype=np.int32)

    def __len__(self) -> int:
        """How many there are, at most `count`."""
        return len(self.costs)

    @property
    def limit(self) -> float:
        """What a secret must cost less than to get in: infinity while there is room."""
        return float(self.costs[-1]) if len(self) == self._count else math.inf

    def add_children(self, children: Children) -> None:
        """Offer the leaves among children."""
        complete = np.flatnonzero(children.leaf & (children.costs <= self.limit))
        if len(complete):
            self.add(children.paths(complete), children.costs[complete])

    def add(self, paths: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Offer leaves: different ones, that were not offered before."""
        paths, costs = stack_rows([self.paths, paths]), np.concatenate([self.costs, costs])
        order = np.lexsort([*paths.T[::-1], costs])[: self._count]
        self.paths, self.costs = paths[order], costs[order]
