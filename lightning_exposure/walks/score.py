"""Along a given set of strings, sharing prefixes: the cost of many secrets for few model evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.language.tree import Children, SecretTree
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
        >>> from lightning_exposure.language import CharTokenizer
        >>> import torch
        >>> uniform = torch.nn.Embedding(16, 16, _weight=torch.zeros(16, 16))
        >>> tree = SecretTree(uniform, SecretFormat("key: ##"), CharTokenizer.from_text("key: 0123456789"))
        >>> score(tree, ["key: 07", "key: 99"]).costs.round(6).tolist()
        [8.0, 8.0]
    """
    paths = tree.paths(secrets)
    costs = np.zeros(len(paths))
    expansions = 0
    for step in follow(tree, paths, memory=memory):
        costs[step.rows] = step.children.costs[step.child]
        expansions += step.expansions
    return Scores(costs, expansions)


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
