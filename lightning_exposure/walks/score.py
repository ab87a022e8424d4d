"""Along a given set of strings, sharing prefixes: the cost of many secrets for few model evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.adapters.states import State
from lightning_exposure.tree.path_reader import PathReader, Reading
from lightning_exposure.tree.secret_tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, rows_within


@dataclass(frozen=True)
class Scores:
    """The log-perplexities of some secrets.

    Attributes:
        costs: In bits, in the order the secrets were given.
        expansions: How many nodes the model read.
    """

    costs: NDArray[np.float64]
    expansions: int


def score(tree: SecretTree, secrets: Sequence[str], *, memory: int = DEFAULT_MEMORY) -> Scores:
    """The log-perplexity of each secret, in bits, in the order given.

    Secrets are sorted, so that those with a common beginning stand together and it is read once.

    Args:
        tree: Where the secrets live.
        secrets: Complete texts of the tree's format.
        memory: The limit for model states, in bytes.

    Raises:
        SecretError: A text is not a secret of the format.

    Example:
        >>> from lightning_exposure import SecretFormat, SecretTree
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> import torch
        >>> uniform = torch.nn.Embedding(16, 16, _weight=torch.zeros(16, 16))
        >>> tree = SecretTree(uniform, SecretFormat("key: ##"), CharTokenizer.from_text("key: 0123456789"))
        >>> score(tree, ["key: 07", "key: 99"]).costs.round(6).tolist()
        [8.0, 8.0]
    """
    paths = tree.paths(secrets)
    if not len(paths):
        return Scores(np.zeros(0), 0)
    batch = rows_within(tree, memory, blocks=tree.automaton.depth + 2)
    distinct, which = _sorted_distinct(paths)
    with tree.reader() as reader:
        walk = _Scoring(reader, distinct, batch)
        walk.run()
    return Scores(walk.costs[which], walk.expansions)


def _sorted_distinct(paths: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Different paths in order, so that those with a common beginning stand together; and which of them each one is."""
    order = np.lexsort(paths.T[::-1])
    ordered = paths[order]
    new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    which = np.empty(len(paths), dtype=np.intp)
    which[order] = np.cumsum(new) - 1
    return ordered[new].astype(np.int64), which


class _Scoring:
    """Sorted paths on the way from the root to their ends.

    What several paths have in common is read once, level by level as long as the nodes of a level fit in one batch,
    then depth-first in batches. Where a path is alone, nothing has to be looked up or picked until its end.
    """

    def __init__(self, reader: PathReader, paths: NDArray[np.int64], batch: int) -> None:
        self._reader = reader
        self._paths = paths
        self._batch = batch
        self._lengths = (paths >= 0).sum(axis=1)
        # With how many tokens a path begins as the one before it does; nothing stands before the first.
        self._common = np.zeros(len(paths) + 1, dtype=np.int64)
        self._common[1:-1] = (paths[1:] != paths[:-1]).argmax(axis=1)
        self._alone_after = np.maximum(self._common[:-1], self._common[1:])
        self.costs: NDArray[np.float64] = np.zeros(len(paths))
        self.expansions = 0

    def run(self) -> None:
        """Read all of them."""
        every = np.arange(len(self._paths))
        self.expansions += 1
        self._go_on(self._reader.start(), every, np.zeros_like(every), 0)

    def _go_on(self, reading: Reading, rows: NDArray[np.intp], node: NDArray[np.int64], level: int) -> None:
        """Go on with paths that are longer than `level`, from nodes of that depth that were just read.

        Args:
            reading: What the model says after the nodes.
            rows: The paths, in order.
            node: Through which of the nodes each of them goes.
            level: How many tokens of each have been read.
        """
        branch = self._common[rows] <= level  # here begins a child that the path before does not go through
        branch[0] = True
        child = np.cumsum(branch) - 1
        tokens, parents = self._paths[rows[branch], level], node[branch]
        self.costs[rows] += reading.bits(parents, tokens)[child]
        state = reading.state
        del reading  # the logits are not needed any more
        goes_on = self._lengths[rows] > level + 1
        alone = self._alone_after[rows] <= level
        single = np.flatnonzero(goes_on & alone)
        for some in _parts(len(single), self._batch):
            these = single[some]
            self._finish(self._reader.select(state, node[these]), rows[these], level)
        rows, child = rows[goes_on & ~alone], child[goes_on & ~alone]
        shared, node = np.unique(child, return_inverse=True)
        for some in _parts(len(shared), self._batch):
            begin, end = np.searchsorted(node, [some.start, some.stop])  # rising, because the paths are sorted
            nodes = shared[some]
            self.expansions += len(nodes)
            after = self._reader.step(self._reader.select(state, parents[nodes]), tokens[nodes])
            self._go_on(after, rows[begin:end], node[begin:end] - some.start, level + 1)

    def _finish(self, state: State, rows: NDArray[np.intp], level: int) -> None:
        """Read paths that share nothing more to their ends, from a state with a row for each."""
        while len(rows):
            reading = self._reader.step(state, self._paths[rows, level])
            self.expansions += len(rows)
            level += 1
            self.costs[rows] += reading.bits(np.arange(len(rows)), self._paths[rows, level])
            state = reading.state
            longer = self._lengths[rows] > level + 1
            if not longer.all():
                rows = rows[longer]
                state = self._reader.select(state, np.flatnonzero(longer)) if len(rows) else None


def _parts(count: int, largest: int) -> Iterator[slice]:
    """The numbers below `count` in as few parts as possible, none above the largest size, all nearly equal."""
    parts = -(-count // largest)
    for i in range(parts):
        yield slice(count * i // parts, count * (i + 1) // parts)


@dataclass(frozen=True)
class Step:
    """One level on the way along given paths.

    Attributes:
        children: The children of the nodes that the paths have come to.
        rows: Which paths go on here.
        child: Which of the children each of them goes to.
        expansions: How many nodes were read for it.
    """

    children: Children
    rows: NDArray[np.intp]
    child: NDArray[np.intp]
    expansions: int

    def is_last(self, paths: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of the paths that go on here end with this step; `paths` are all that were given."""
        level = (self.children.parent_paths >= 0).sum(axis=1)[self.children.parents[self.child]]
        last: NDArray[np.bool_] = 1 + level == (paths[self.rows] >= 0).sum(axis=1)
        return last


def follow(
    tree: SecretTree, paths: NDArray[np.int32], *, bound: float = math.inf, memory: int = DEFAULT_MEMORY
) -> Iterator[Step]:
    """Walk along given paths; beginnings that paths share are read once.

    Level by level as long as the nodes of a level fit in one batch, then depth-first in batches.

    Args:
        tree: What to walk.
        paths: Complete paths, one row each, filled up with -1.
        bound: Siblings that cost more are left out; the paths themselves must cost no more.
        memory: The limit for model states, in bytes.
    """
    if not len(paths):
        return
    order = np.lexsort(paths.T[::-1])  # paths that go through one node stand together
    batch = rows_within(tree, memory, blocks=tree.automaton.depth + 2)
    start = np.zeros(len(order), dtype=np.int64)
    yield from _follow_from(tree, paths, Step(tree.root(bound), order, start, 1), 0, bound, batch)


def _follow_from(
    tree: SecretTree, paths: NDArray[np.int32], at: Step, level: int, bound: float, batch: int
) -> Iterator[Step]:
    """Go on with sorted paths from nodes that were just read; `at.child` says through which each path goes."""
    child = _find(at.children, at.child, paths[at.rows, level])
    yield Step(at.children, at.rows, child, at.expansions)
    if level + 1 == paths.shape[1]:
        return
    goes_on = paths[at.rows, level + 1] >= 0
    rows = at.rows[goes_on]
    distinct, node_of = np.unique(child[goes_on], return_inverse=True)
    for first in range(0, len(distinct), batch):
        nodes = distinct[first : first + batch]
        begin, end = np.searchsorted(node_of, [first, first + len(nodes)])  # rising, because the paths are sorted
        children = tree.expand(at.children.take(nodes), bound)
        step = Step(children, rows[begin:end], node_of[begin:end] - first, len(nodes))
        yield from _follow_from(tree, paths, step, level + 1, bound, batch)


def _find(children: Children, parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> NDArray[np.intp]:
    """The position of each (parent, token) among children, which stand in the order of their parents and tokens."""
    stride = int(max(children.tokens.max(), tokens.max())) + 1
    keys, wanted = children.parents * stride + children.tokens, parents * stride + tokens
    found = np.searchsorted(keys, wanted)
    assert (keys[np.minimum(found, len(keys) - 1)] == wanted).all(), "a path leaves the tree, or is beyond the bound"
    return found
