"""Cheapest first: the most likely secrets, with a proof that there are none more likely.

Dijkstra's algorithm on the tree, in batches: expand the cheapest open nodes, many at a time, and stop when no open
node is cheaper than the k-th best leaf. A batch may expand nodes that one-at-a-time order would never have come to,
but it never stops too early, so the answer is optimal at every batch size. The batch grows from 1, for a memorized
secret lies at the end of a path of cheap nodes and needs only few expansions.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import choice, whole_number
from lightning_exposure.tree.prompt import reads_prompt_once
from lightning_exposure.tree.secret_tree import Children, Nodes, SecretTree
from lightning_exposure.walks._frontier import OPEN_NODE, Frontier, OpenNodes
from lightning_exposure.walks._state_pool import StatePool
from lightning_exposure.walks.batches import DEFAULT_MEMORY, POSSIBLE, rows_within
from lightning_exposure.walks.best import BestLeaves
from lightning_exposure.walks.enumerate import check_budget
from lightning_exposure.walks.progress import Progress

Stop = Literal["proof", "paper"]
"""When a search stops: when nothing better can exist, or by the rule of the paper."""

_FOR_STATES = 0.85
"""The part of the memory that may be filled: the rest is for the batch that is being read, and for copies."""


@dataclass(frozen=True)
class SearchResult:
    """What a search for the most likely secrets found.

    Attributes:
        paths: The secrets found, cheapest first, one row of tokens each.
        costs: Their log-perplexities, in bits.
        expansions: How many nodes the model read.
        ended_by: "proof" if nothing better exists; otherwise what ended the search: "expansions", "seconds", "memory",
            "paper" (the paper's rule), "width" (a beam that dropped nodes) or "interrupt".
        lower_bound: No secret that was not found costs less than this many bits.
    """

    paths: NDArray[np.int32]
    costs: NDArray[np.float64]
    expansions: int
    ended_by: str
    lower_bound: float


@reads_prompt_once
def best_first(
    tree: SecretTree,
    top_k: int = 1,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    memory: int = DEFAULT_MEMORY,
    largest_batch: int = 4096,
    stop: Stop = "proof",
    progress: Progress | None = None,
) -> SearchResult:
    """The `top_k` cheapest secrets of a tree.

    Args:
        tree: What to search.
        top_k: How many secrets.
        budget: The largest number of expansions; None: no limit.
        seconds: The largest time; None: no limit.
        memory: The limit for states and open nodes together, in bytes. States that do not fit are computed again when
            they are needed; only when the open nodes alone do not fit does the search end.
        largest_batch: How many nodes are expanded at once when the batch has grown.
        stop: "proof": when nothing better can exist. "paper": after twice the batches that led to the first leaf.
        progress: Called after each batch.
    """
    choice("stop", stop, get_args(Stop))
    whole_number("top_k", top_k, at_least=1)
    whole_number("largest_batch", largest_batch, at_least=1)
    check_budget(budget)
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    search = _Search(tree, top_k, memory, largest_batch)
    ended_by = "proof"
    try:
        search.begin()
        while search.frontier.cheapest() < search.best.limit:
            limit = search.limit_reached(stop, budget, deadline)
            if limit is not None:
                ended_by = limit
                break
            search.expand_batch(math.inf if budget is None else budget - search.expansions)
            if progress is not None:
                progress(search.expansions, len(search.frontier), float(search.best.costs.min(initial=math.inf)))
    except KeyboardInterrupt:
        ended_by = "interrupt"
    return search.result(ended_by)


class _Search:
    """A search under way."""

    def __init__(self, tree: SecretTree, top_k: int, memory: int, largest_batch: int) -> None:
        self._tree = tree
        self._memory = memory
        self._cap = min(largest_batch, rows_within(tree, memory, blocks=4))
        self._pool = StatePool(tree.model)
        self._expanded = _ExpandedNodes()
        self._next_size = 1
        self._floor = 0.0  # nothing that was not found costs less; never falls, so it holds even in mid-batch
        self.frontier = Frontier()
        self.best = BestLeaves(top_k)
        self.expansions = 0
        self._batches = 0
        self._first_leaf_batch = 0

    @property
    def bytes_without_states(self) -> int:
        """What cannot be given up: the open nodes, and the way back from each to the root."""
        return self.frontier.nbytes + self._expanded.nbytes + self._pool.index_bytes

    @property
    def doubled(self) -> bool:
        """Whether as many batches have passed since the first leaf as had passed until it."""
        return 0 < 2 * self._first_leaf_batch <= self._batches

    def limit_reached(self, stop: str, budget: int | None, deadline: float) -> str | None:
        """What ends the search before a proof; None: nothing yet."""
        if stop == "paper" and self.doubled:
            return "paper"
        if budget is not None and self.expansions >= budget:
            return "expansions"
        if time.monotonic() > deadline:
            return "seconds"
        return "memory" if self.bytes_without_states > self._memory else None

    def begin(self) -> None:
        """Read the prompt."""
        children = self._tree.root(POSSIBLE)
        self.expansions = self._batches = 1
        self._take_in(children, self._expanded.add_root())

    def expand_batch(self, at_most: float) -> None:
        """Expand the cheapest open nodes."""
        self._floor = max(self._floor, self.frontier.cheapest())
        chosen = self.frontier.pop(int(min(self._next_size, self._cap, at_most)))
        self._next_size *= 2
        self._batches += 1
        parents = chosen["parent"].astype(np.int64)
        numbers = self._expanded.add(chosen)
        # States that are kept are one batch, states that must be read again another: both small, neither copied.
        state, kept = self._pool.gather(parents)
        is_lost = np.ones(len(chosen), dtype=bool)
        is_lost[kept] = False
        lost = np.flatnonzero(is_lost)
        paths = self._expanded.paths(numbers)
        for rows, known in ((kept, state), (lost, None)):
            if len(rows):
                nodes = _nodes(self._tree, chosen.take(rows), paths[rows], known)
                self._take_in(self._tree.expand(nodes, min(self.best.limit, POSSIBLE)), numbers[rows])
        self._pool.release(parents)
        self.expansions += len(chosen)

    def result(self, ended_by: str) -> SearchResult:
        """What was found so far."""
        at_least = min(self.frontier.cheapest(), self.best.limit) if ended_by != "interrupt" else self._floor
        if ended_by == "proof":
            at_least = self.best.limit if self.best.limit < math.inf else float(self.best.costs.max(initial=0.0))
        return SearchResult(self.best.paths, self.best.costs, self.expansions, ended_by, at_least)

    def _take_in(self, children: Children, numbers: NDArray[np.int64]) -> None:
        """Leaves to the best ones, open children to the frontier, the parents' states to the pool."""
        before = self.best.limit
        self.best.add_children(children)
        if len(self.best) and not self._first_leaf_batch:
            self._first_leaf_batch = self._batches
        if self.best.limit < before:
            self._pool.release(self.frontier.drop_from(self.best.limit)["parent"].astype(np.int64))
        is_growing = children.open & (children.costs < self.best.limit)
        growing = slice(None) if is_growing.all() else np.flatnonzero(is_growing)
        parents = children.parents[growing]
        opened = np.empty(len(parents), dtype=OPEN_NODE)
        opened["cost"], opened["token"] = children.costs[growing], children.tokens[growing]
        opened["place"], opened["parent"] = children.places[growing], numbers[parents]
        self.frontier.push(opened)
        waiting = np.bincount(parents, minlength=len(numbers))
        room = int(_FOR_STATES * self._memory) - self.bytes_without_states
        self._pool.shrink_to(room)
        self._pool.add(children.state, numbers, waiting, room - self._pool.nbytes)


def _nodes(tree: SecretTree, chosen: OpenNodes, paths: NDArray[np.int32], state: object | None) -> Nodes:
    """Open nodes as nodes to expand, with their states, or read again from the root."""
    places, costs = chosen["place"].astype(np.int64), chosen["cost"].copy()
    if state is None:
        return tree.revive(paths, places, costs)
    return Nodes(state, chosen["token"].astype(np.int64), places, costs, paths)


class _ExpandedNodes:
    """Parents and tokens of all nodes that were expanded, to find the way back to the root."""

    def __init__(self) -> None:
        self._parents = np.empty(1024, dtype=np.int32)
        self._tokens = np.empty(1024, dtype=np.int32)
        self._depths = np.empty(1024, dtype=np.int16)
        self._count = 0

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self._parents, self._tokens, self._depths))

    def add_root(self) -> NDArray[np.int64]:
        self._depths[0] = 0
        self._count = 1
        return np.zeros(1, dtype=np.int64)

    def add(self, nodes: OpenNodes) -> NDArray[np.int64]:
        """Number new nodes."""
        numbers = np.arange(self._count, self._count + len(nodes))
        self._count += len(nodes)
        if self._count > len(self._parents):
            for name in ("_parents", "_tokens", "_depths"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.empty(max(self._count, len(column)), column.dtype)]))
        self._parents[numbers], self._tokens[numbers] = nodes["parent"], nodes["token"]
        self._depths[numbers] = self._depths[nodes["parent"]] + 1
        return numbers

    def paths(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """The tokens from the root to nodes, filled up with -1."""
        depths = self._depths[numbers]
        paths = np.full((len(numbers), int(depths.max(initial=0))), -1, dtype=np.int32)
        rows, at = np.arange(len(numbers)), numbers
        for column in range(paths.shape[1] - 1, -1, -1):
            deep = depths[rows] > column
            paths[rows[deep], column] = self._tokens[at[deep]]
            at = np.where(deep, self._parents[at], at)
        return paths
