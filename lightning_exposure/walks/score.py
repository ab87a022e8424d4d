"""Along a given set of strings, sharing prefixes: the cost of many secrets for few model evaluations."""

from __future__ import annotations

from collections.abc import Sequence
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
    if len(paths) == 0:
        return Scores(costs, 0)
    order = np.lexsort(paths.T[::-1])
    rows = rows_within(tree, memory, blocks=3)  # a level's states, the next level's, and the selection between
    expansions = 0
    for start in range(0, len(order), rows):
        chunk = order[start : start + rows]
        costs[chunk], used = _score_sorted(tree, paths[chunk])
        expansions += used
    return Scores(costs, expansions)


def _score_sorted(tree: SecretTree, paths: NDArray[np.int32]) -> tuple[NDArray[np.float64], int]:
    """The costs of sorted paths, level by level: at each level every distinct beginning is read once."""
    children = tree.root()
    expansions = 1
    node_of = np.zeros(len(paths), dtype=np.int64)  # which of the nodes just expanded each path goes through
    costs = np.zeros(len(paths))
    for level in range(paths.shape[1]):
        going = np.flatnonzero(paths[:, level] >= 0)
        child = _find(children, node_of[going], paths[going, level])
        costs[going] = children.costs[child]
        goes_on = paths[going, level + 1] >= 0 if level + 1 < paths.shape[1] else np.zeros(len(going), dtype=bool)
        if not goes_on.any():
            break
        distinct, inverse = np.unique(child[goes_on], return_inverse=True)
        node_of[going[goes_on]] = inverse
        children = tree.expand(children.take(distinct))
        expansions += len(distinct)
    return costs, expansions


def _find(children: Children, parents: NDArray[np.int64], tokens: NDArray[np.int32]) -> NDArray[np.intp]:
    """The position of each (parent, token) among children, which stand in the order of their parents."""
    stride = int(max(children.tokens.max(), tokens.max())) + 1
    keys = children.parents * stride + children.tokens
    order = np.argsort(keys, kind="stable")
    return order[np.searchsorted(keys, parents * stride + tokens, sorter=order)]
