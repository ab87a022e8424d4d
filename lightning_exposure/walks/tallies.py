"""How many secrets are as cheap as given ones, and what they weigh under a prior: sums that grow with a walk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST_SCALE = -400.0
"""Masses are kept relative to 2^scale; what is larger by more than this would not have a square."""


def scales(prior: Floats) -> Floats:
    """What the masses around secrets are measured in, as log2: their own prior probabilities, if those are not tiny.

    In this unit the masses of a uniform prior are counts, exact to the last bit. For a secret that the prior excludes
    the unit is 1.
    """
    return np.where(np.isneginf(prior), 0.0, np.maximum(prior, LEAST_SCALE))


class Tally:
    """The sums, for each given secret, of the weights of what lies below four limits.

    Args:
        scale: For each given secret, log2 of the unit its sums are in; None: weights are all 1, and sums are counts.
        count: How many secrets are given.
    """

    def __init__(self, count: int, scale: Floats | None = None) -> None:
        self._scale = scale
        kind = np.int64 if scale is None else np.float64
        self.surely, self.equal, self.cheaper, self.perhaps = np.zeros((4, count), dtype=kind)

    def add(self, positions: NDArray[np.intp], weights: Floats | None = None) -> None:
        """Take in leaves that are sorted by cost.

        Args:
            positions: For each given secret, how many leaves lie surely below it, below its cost, at its cost or below,
                and perhaps below it `(4, secrets)`.
            weights: log2 of the weight of each leaf, in the order of costs; None: all 1.
        """
        if self._scale is None or weights is None:
            surely, below, cheaper, perhaps = positions
        else:
            unit = float(weights.max(initial=-np.inf))
            unit = unit if np.isfinite(unit) else 0.0
            sums = np.concatenate([[0.0], np.cumsum(np.exp2(weights - unit))])
            surely, below, cheaper, perhaps = sums[positions] * np.exp2(unit - self._scale)
        self.surely += surely
        self.equal += cheaper - below
        self.cheaper += cheaper
        self.perhaps += perhaps

    def take_out(self, secret: int, is_in: tuple[bool, bool, bool, bool], weight: float = 0.0) -> None:
        """A leaf was a given secret itself: it is not counted with the others.

        Args:
            secret: Which one.
            is_in: Whether it was added to each of the four sums.
            weight: log2 of what it was added with.
        """
        one = 1 if self._scale is None else float(np.exp2(weight - self._scale[secret]))
        for total, was_added in zip((self.surely, self.equal, self.cheaper, self.perhaps), is_in, strict=True):
            total[secret] = max(0, total[secret] - one) if was_added else total[secret]
