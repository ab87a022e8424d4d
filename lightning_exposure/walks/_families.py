"""Siblings: runs of children that have the same parent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def families(parents: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each run of siblings begins, and which run each child is in."""
    begins = np.ones(len(parents), dtype=bool)
    begins[1:] = parents[1:] != parents[:-1]
    return np.flatnonzero(begins), np.cumsum(begins) - 1
