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
    """Walk along given paths, level by level, in chunks; beginnings that paths of a chunk share are read once.

    Args:
        tree: What to walk.
        paths: Complete paths, one row each, filled up with -1.
        bound: Siblings that cost more are left out; the paths themselves must cost no more.
        memory: The limit for model states, in bytes.
    """
    if not len(paths):
        return
    order = np.lexsort(paths.T[::-1])  # so that a chunk's paths share as much as possible
    rows = rows_within(tree, memory, blocks=3)  # a level's states, the next level's, and the selection between
    for start in range(0, len(order), rows):
        yield from _follow_together(tree, paths, order[start : start + rows], bound)


def _follow_together(
    tree: SecretTree, paths: NDArray[np.int32], rows: NDArray[np.intp], bound: float
) -> Iterator[Step]:
    """One chunk: at each level every distinct beginning is read once."""
    children, expansions = tree.root(bound), 1
    node_of = np.zeros(len(rows), dtype=np.int64)  # which of the nodes just read each path goes through
    for level in range(paths.shape[1]):
        child = _find(children, node_of, paths[rows, level])
        yield Step(children, rows, child, expansions)
        if level + 1 == paths.shape[1]:
            return
        goes_on = paths[rows, level + 1] >= 0
        if not goes_on.any():
            return
        rows = rows[goes_on]
        distinct, node_of = np.unique(child[goes_on], return_inverse=True)
        children, expansions = tree.expand(children.take(distinct), bound), len(distinct)


def _find(children: Children, parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> NDArray[np.intp]:
    """The position of each (parent, token) among children, which stand in the order of their parents and tokens."""
    stride = int(max(children.tokens.max(), tokens.max())) + 1
    keys, wanted = children.parents * stride + children.tokens, parents * stride + tokens
    found = np.searchsorted(keys, wanted)
    assert (keys[np.minimum(found, len(keys) - 1)] == wanted).all(), "a path leaves the tree, or is beyond the bound"
    return found
