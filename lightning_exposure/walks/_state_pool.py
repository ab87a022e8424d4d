"""Model states of expanded nodes, shared by their open children, within a limit of memory.

A state is kept until its last child is expanded or dropped. When there is no room a state is not kept at all: its
children are then read again from the root when their turn comes, which is slower and never wrong. New states are
turned away rather than old ones thrown out, because in a best-first walk the children of earlier nodes come first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_exposure.adapters.protocol import StepModel, device_of
from lightning_exposure.adapters.states import ModelState

_SMALL_BLOCK = 2**22
"""Blocks below 4 MiB are put together: below that, asking one more block costs more than copying its states once."""


@dataclass
class _Block:
    """Some states in one batch."""

    state: ModelState
    owners: NDArray[np.int64]
    bytes: int
    live: int  # how many of the owners still have children that wait


class StatePool:
    """States by the number of the expanded node they belong to.

    Args:
        model: What knows how to select and put together its states.
    """

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._device = device_of(model.module)  # asked once: a walk does not move its model
        self._blocks: dict[int, _Block] = {}
        self._next = 0
        self._block_of = np.empty(0, dtype=np.int32)  # for each owner: its block, -1 if its state is not kept
        self._row_of = np.empty(0, dtype=np.int32)
        self._waiting = np.empty(0, dtype=np.int32)  # for each owner: how many children still need its state
        self.nbytes = 0

    def add(self, state: ModelState, owners: NDArray[np.int64], children: NDArray[np.int64], room: int) -> None:
        """Keep the states of owners that have children, if they fit in the room.

        Args:
            state: One row per owner.
            owners: The numbers of the nodes just expanded.
            children: How many open children each has.
            room: How many bytes may be added.
        """
        self._reach(int(owners.max()) + 1)
        self._waiting[owners] = children
        wanted = np.flatnonzero(children)
        size = self._model.bytes_of(state) * len(wanted) // max(1, len(owners))
        if not len(wanted) or size > room:
            return
        if len(wanted) < len(owners):
            state = self._select(state, wanted)
        self._store(state, owners[wanted])
        self._put_small_ones_together()

    @property
    def index_bytes(self) -> int:
        """The memory of what tells where each state is."""
        return self._block_of.nbytes + self._row_of.nbytes + self._waiting.nbytes

    def shrink_to(self, size: int) -> None:
        """Give up the newest blocks until the states take no more than so many bytes."""
        while self._blocks and self.nbytes > size:
            self._remove(max(self._blocks))

    def gather(self, owners: NDArray[np.int64]) -> tuple[ModelState | None, NDArray[np.intp]]:
        """The states of those owners that are kept, in one batch, and their positions in what was asked for."""
        kept = np.flatnonzero(self._block_of[owners] >= 0)
        if not len(kept):
            return None, kept
        kept = kept[np.argsort(self._block_of[owners[kept]], kind="stable")]
        numbers, first = np.unique(self._block_of[owners[kept]], return_index=True)
        parts = np.split(self._row_of[owners[kept]], first[1:])
        states = [self._select(self._blocks[int(n)].state, rows) for n, rows in zip(numbers, parts, strict=True)]
        return self._model.concatenate(states), kept

    def release(self, owners: NDArray[np.int64]) -> None:
        """One child of each owner (as often as it is named) needs its state no longer."""
        named, times = np.unique(owners, return_counts=True)
        self._waiting[named] -= times.astype(np.int32)
        finished = self._block_of[named[self._waiting[named] <= 0]]
        for number, count in zip(*np.unique(finished[finished >= 0], return_counts=True), strict=True):
            self._blocks[int(number)].live -= int(count)
            self._compact(int(number))

    def _reach(self, count: int) -> None:
        if count > len(self._waiting):
            more = max(count, 2 * len(self._waiting)) - len(self._waiting)
            self._block_of = np.concatenate([self._block_of, np.full(more, -1, dtype=np.int32)])
            self._row_of = np.concatenate([self._row_of, np.zeros(more, dtype=np.int32)])
            self._waiting = np.concatenate([self._waiting, np.zeros(more, dtype=np.int32)])

    def _select(self, state: ModelState, rows: NDArray[np.integer]) -> ModelState:
        return self._model.select(state, torch.from_numpy(rows.astype(np.int64)).to(self._device))

    def _store(self, state: ModelState, owners: NDArray[np.int64], live: int | None = None) -> None:
        """A new block; all its owners are live unless told otherwise."""
        size = self._model.bytes_of(state)
        self._blocks[self._next] = _Block(state, owners, size, len(owners) if live is None else live)
        self._block_of[owners] = self._next
        self._row_of[owners] = np.arange(len(owners))
        self._next += 1
        self.nbytes += size

    def _remove(self, number: int) -> _Block:
        block = self._blocks.pop(number)
        self._block_of[block.owners] = -1
        self.nbytes -= block.bytes
        return block

    def _compact(self, number: int) -> None:
        """Free the rows that nobody waits for, once they are half of a block."""
        if 2 * self._blocks[number].live > len(self._blocks[number].owners):
            return
        block = self._remove(number)
        live = np.flatnonzero(self._waiting[block.owners] > 0)
        if len(live):
            self._store(self._select(block.state, live), block.owners[live])

    def _put_small_ones_together(self) -> None:
        """Merge the newest blocks while they are small and of similar size: each state is copied a few times only."""
        while len(self._blocks) > 1:
            before, last = sorted(self._blocks)[-2:]
            if self._blocks[before].bytes > min(2 * self._blocks[last].bytes, _SMALL_BLOCK - self._blocks[last].bytes):
                return
            first, second = self._remove(before), self._remove(last)
            state = self._model.concatenate([first.state, second.state])
            self._store(state, np.concatenate([first.owners, second.owners]), first.live + second.live)
