"""What competes for a place in a sample without replacement, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization.paths import stack_rows
from lightning_exposure.walks._weights import mixed

Floats = NDArray[np.float64]

OPEN, COMPLETE, DEAD = 0, 1, 2
"""Kinds of competitors: nodes with children, secrets, and nodes below which there is nothing within the bound."""


@dataclass(frozen=True)
class Passed:
    """Nodes that were expanded on the way."""

    keys: Floats
    log_weights: Floats
    costs: Floats

    @staticmethod
    def join(parts: Sequence[Passed]) -> Passed:
        if not parts:
            return Passed(np.empty(0), np.empty(0), np.empty(0))
        return Passed(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Passed)))

    def above(self, threshold: float) -> Passed:
        kept = self.keys > threshold
        return Passed(self.keys[kept], self.log_weights[kept], self.costs[kept])


@dataclass(frozen=True)
class Pool:
    """What competes for a place in the sample: open nodes, complete secrets, and dead ends."""

    keys: Floats
    components: Floats  # log probability of the way here, at each temperature
    costs: Floats
    places: NDArray[np.int64]
    paths: NDArray[np.int32]
    kind: NDArray[np.int64]
    block: NDArray[np.int64]  # which expanded batch an open node comes from, and which of its children it is
    child: NDArray[np.intp]
    prior: Floats  # log2 of the prior probability of a complete secret, or of what goes on behind an open node

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def log_weights(self) -> Floats:
        return mixed(self.components)

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Pool:
        return Pool(*(getattr(self, field.name)[which] for field in fields(self)))

    @staticmethod
    def join(parts: Sequence[Pool]) -> Pool:
        columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Pool)}
        paths = stack_rows(columns.pop("paths"))
        return Pool(paths=paths, **{name: np.concatenate(column) for name, column in columns.items()})
