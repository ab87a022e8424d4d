"""Everything cheaper than a bound, pruning the rest: exact ranks; and, with no bound, brute force.

A prefix costs no more than any secret below it, so a node beyond the bound is dropped with all its descendants.
The walk is depth-first in blocks: what is kept is one block of states per level, whatever the size of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.errors import ArgumentError, BudgetError, TokenizerError
from lightning_exposure.language.paths import PathFinder
from lightning_exposure.language.tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, rows_within

Progress = Callable[[int], None]
"""Called with the number of expansions so far."""


@dataclass(frozen=True)
class Leaves:
    """Some complete secrets that a walk came to.

    Attributes:
        paths: The tokens from the root, one row per secret; shorter paths are filled up with -1.
        costs: Their log-perplexities, in bits.
        expansions: How many nodes the walk had expanded by then.
    """

    paths: NDArray[np.int32]
    costs: NDArray[np.float64]
    expansions: int


def enumerate_leaves(
    tree: SecretTree,
    bound: float = math.inf,
    *,
    budget: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Iterator[Leaves]:
    """All secrets that cost at most `bound` bits, in batches, in no particular order of cost.

    Args:
        tree: What to walk.
        bound: The largest cost, in bits.
        budget: The largest number of expansions; None: as many as it takes.
        memory: The limit for model states, in bytes.
        progress: Called after each batch with the number of expansions so far.

    Yields:
        Batches of leaves; the last one may be empty, so that its `expansions` is the total.

    Raises:
        BudgetError: More than `budget` expansions are needed.
        TokenizerError: Without a bound, the walk came to more or fewer secrets than there are.
    """
    if budget is not None and budget < 1:
        raise ArgumentError(f"budget is {budget!r}; expected at least 1 expansion, or None for no limit.")
    rows = rows_within(tree, memory, blocks=tree.automaton.depth + 2)
    stack: list[tuple[Children, NDArray[np.intp]]] = []
    expansions, reached = 1, 0
    children = tree.root(bound)
    while True:
        complete = np.flatnonzero(children.leaf)
        reached += len(complete)
        yield Leaves(children.paths(complete), children.costs[complete], expansions)
        if progress is not None:
            progress(expansions)
        waiting = np.flatnonzero(children.open)
        if len(waiting):
            stack.append((children, waiting))
        if not stack:
            if bound == math.inf or reached > tree.size:  # without a bound nothing is left out
                check_reached(tree, reached)
            return
        siblings, waiting = stack.pop()
        now, later = waiting[:rows], waiting[rows:]
        if len(later):
            stack.append((siblings, later))
        expansions += len(now)
        if budget is not None and expansions > budget:
            raise BudgetError(
                f"budget is {budget:,} expansions, and the secrets that cost at most {bound:.2f} bits need more. "
                "Raise the budget, or estimate with method='importance'."
            )
        children = tree.expand(siblings.take(now), bound)


def check_reached(tree: SecretTree, reached: int) -> None:
    """Compare how many secrets a walk over the whole tree came to with how many there are.

    Raises:
        TokenizerError: They are not the same number.
    """
    if reached != tree.size:
        raise TokenizerError(
            f"the tree has {reached:,} secrets, but {tree.format!r} has {tree.size:,}: the tokenizer spells some of "
            "them in a way that the tree does not hold, or two of them alike. Nothing that was measured on it would be "
            "right. Use a format that the tokenizer spells character by character, and please report the tokenizer."
        )


@dataclass(frozen=True)
class Ranks:
    """Exact ranks of some secrets.

    Attributes:
        ranks: For each secret, how many secrets cost at most as much, itself counted exactly once.
        expansions: How many nodes the model read.
    """

    ranks: list[int]
    expansions: int


def count_ranks(
    tree: SecretTree,
    paths: NDArray[np.int32],
    costs: NDArray[np.float64],
    *,
    budget: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Ranks:
    """The exact ranks of secrets, in one walk up to the cost of the most expensive one.

    Costs within `tree.tie` of each other are equal, and equal costs count against the secret: its rank includes them.

    Args:
        tree: What to walk.
        paths: The secrets, all different, as token paths from the root, one row each.
        costs: Their log-perplexities, in bits, finite.
        budget: The largest number of expansions; None: as many as it takes.
        memory: The limit for model states, in bytes.
        progress: Called with the number of expansions so far.

    Raises:
        BudgetError: More than `budget` expansions are needed.
    """
    limits = costs + tree.tie
    order = np.argsort(limits, kind="stable")
    ascending = limits[order]
    first_reached = np.zeros(len(limits) + 1, dtype=np.int64)
    own = PathFinder(paths)
    itself = np.zeros(len(limits), dtype=np.int64)
    expansions = 0
    for leaves in enumerate_leaves(tree, float(ascending[-1]), budget=budget, memory=memory, progress=progress):
        reached = np.searchsorted(ascending, leaves.costs, side="left")
        first_reached += np.bincount(reached, minlength=len(first_reached))
        for secret, leaf in own.find(leaves.paths):
            itself[secret] = leaves.costs[leaf] <= limits[secret]
        expansions = leaves.expansions
    counted = np.empty(len(limits), dtype=np.int64)
    counted[order] = np.cumsum(first_reached[:-1])
    return Ranks([int(rank) for rank in counted - itself + 1], expansions)
