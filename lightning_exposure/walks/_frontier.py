"""The open nodes of a best-first walk: arrays in buckets by cost, not a heap of Python objects.

A million expansions leave ten million open nodes. They are kept as rows of 20 bytes, in buckets a fraction of a bit
wide. To find the cheapest ones only the lowest buckets are looked at.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray

OPEN_NODE = np.dtype([("cost", np.float64), ("token", np.int32), ("place", np.int32), ("parent", np.int32)])
"""An open node: what it costs, the token that leads to it, its place in the format, its expanded parent's number."""

OpenNodes = NDArray[np.void]

_WIDTH = 1.0 / 16.0
"""Of a bucket, in bits."""


class Frontier:
    """A priority queue of open nodes that gives the cheapest ones in batches.

    Example:
        >>> frontier = Frontier()
        >>> frontier.push(np.array([(2.5, 0, 0, 0), (0.5, 1, 0, 0), (1.5, 2, 0, 0)], dtype=OPEN_NODE))
        >>> sorted(frontier.pop(2)["token"].tolist()), frontier.cheapest(), len(frontier)
        ([1, 2], 2.5, 1)
    """

    def __init__(self) -> None:
        self._buckets: dict[int, list[OpenNodes]] = {}
        self._numbers: list[int] = []  # a heap of the buckets' numbers
        self._count = 0

    def __len__(self) -> int:
        """How many nodes are open."""
        return self._count

    @property
    def nbytes(self) -> int:
        """The memory the open nodes take."""
        return self._count * OPEN_NODE.itemsize

    def push(self, nodes: OpenNodes) -> None:
        """Add nodes."""
        if not len(nodes):
            return
        bucket = np.floor(nodes["cost"] / _WIDTH)
        # numpy sorts small numbers much faster
        bucket = bucket.astype(np.int16 if bucket.max() < 2**15 else np.int64)
        order = np.argsort(bucket, kind="stable")
        bucket = bucket[order]
        edges = np.flatnonzero(np.diff(bucket)) + 1
        for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(nodes)], strict=True):
            # A copy, for a view would keep all the nodes of the push alive until the last of them is gone. Here and
            # below with `take`, which copies records ten times faster than indexing does.
            self._add(int(bucket[start]), nodes.take(order[start:end]))
        self._count += len(nodes)

    def pop(self, count: int) -> OpenNodes:
        """Take out the `count` cheapest nodes, or all if there are fewer, in no particular order."""
        taken: list[OpenNodes] = []
        missing = count
        while missing and self._numbers:
            number = self._numbers[0]
            nodes = self._merged(number)
            if len(nodes) <= missing:
                heapq.heappop(self._numbers)
                del self._buckets[number]
            else:
                order = np.argpartition(nodes["cost"], missing - 1)
                self._buckets[number] = [nodes.take(order[missing:])]
                nodes = nodes.take(order[:missing])
            taken.append(nodes)
            missing -= len(nodes)
        found = np.concatenate(taken) if taken else np.empty(0, dtype=OPEN_NODE)
        self._count -= len(found)
        return found

    def cheapest(self) -> float:
        """The cost of the cheapest open node; infinity if there is none."""
        if not self._numbers:
            return math.inf
        return float(min(nodes["cost"].min() for nodes in self._buckets[self._numbers[0]]))

    def drop_from(self, cost: float) -> OpenNodes:
        """Take out all nodes that cost at least so much: they cannot lead to anything better."""
        first = math.floor(cost / _WIDTH)
        dropped: list[OpenNodes] = []
        for number in [number for number in self._numbers if number >= first]:
            nodes = self._merged(number)
            keep = nodes["cost"] < cost
            dropped.append(nodes.take(np.flatnonzero(~keep)))
            if keep.any():
                self._buckets[number] = [nodes.take(np.flatnonzero(keep))]
            else:
                del self._buckets[number]
        self._numbers = list(self._buckets)
        heapq.heapify(self._numbers)
        found = np.concatenate(dropped) if dropped else np.empty(0, dtype=OPEN_NODE)
        self._count -= len(found)
        return found

    def _add(self, number: int, nodes: OpenNodes) -> None:
        if number not in self._buckets:
            self._buckets[number] = []
            heapq.heappush(self._numbers, number)
        self._buckets[number].append(nodes)

    def _merged(self, number: int) -> OpenNodes:
        parts = self._buckets[number]
        if len(parts) > 1:
            self._buckets[number] = [np.concatenate(parts)]
        return self._buckets[number][0]
