"""Everything cheaper than a bound, pruning the rest: exact ranks; and, with no bound, brute force.

A prefix costs no more than any secret below it, so a node beyond the bound is dropped with all its descendants.
The walk is depth-first in blocks: what is kept is one block of states per level, whatever the size of the tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import whole_number
from lightning_exposure.errors import BudgetError, TokenizerError
from lightning_exposure.tokenization.paths import PathFinder
from lightning_exposure.tree.secret_tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, rows_within
from lightning_exposure.walks.progress import Progress
from lightning_exposure.walks.rounding import Rounding
from lightning_exposure.walks.tallies import Tally, scales
from lightning_exposure.walks.weighed_tree import leaf_prior


@dataclass(frozen=True)
class Leaves:
    """Some complete secrets that a walk came to.

    Attributes:
        paths: The tokens from the root, one row per secret; shorter paths are filled up with -1.
        costs: Their log-perplexities, in bits.
        expansions: How many nodes the walk had expanded by then.
        prior: Their prior probabilities, as log2, if the tree is a `WeighedTree`.
    """

    paths: NDArray[np.int32]
    costs: NDArray[np.float64]
    expansions: int
    prior: NDArray[np.float64] | None = None


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
        bound: The largest cost, in bits; what is impossible is never among them.
        budget: The largest number of expansions; None: as many as it takes.
        memory: The limit for model states, in bytes.
        progress: Called after each batch.

    Yields:
        Batches of leaves; the last one may be empty, so that its `expansions` is the total.

    Raises:
        BudgetError: More than `budget` expansions are needed.
        TokenizerError: Without a bound, the walk came to more or fewer secrets than there are.
    """
    check_budget(budget)
    # If all of the tree is asked for it is counted, what is impossible included, though it is not handed on.
    counts = bound == math.inf
    with tree.prompt.kept():  # not while the generator waits: the caller may train on meanwhile
        rows = rows_within(tree, memory, blocks=tree.automaton.depth + 2)
        children = tree.root(bound)
    stack: list[tuple[Children, NDArray[np.intp]]] = []
    expansions, reached, best = 1, 0, math.inf
    while True:
        complete = np.flatnonzero(children.leaf)
        reached += len(complete)
        complete = complete[np.isfinite(children.costs[complete])]
        yield Leaves(children.paths(complete), children.costs[complete], expansions, leaf_prior(children, complete))
        best = float(children.costs[complete].min(initial=best))
        waiting = np.flatnonzero(children.open)
        if len(waiting):
            stack.append((children, waiting))
        if progress is not None:
            progress(expansions, sum(len(later) for _, later in stack), best)
        if not stack:
            if counts or reached > tree.size:
                check_reached(tree, reached)
            return
        siblings, waiting = stack.pop()
        now, later = waiting[:rows], waiting[rows:]
        if len(later):
            stack.append((siblings, later))
        expansions += len(now)
        _refuse_beyond(budget, expansions, bound)
        children = tree.expand(siblings.take(now), bound)


def check_budget(budget: int | None) -> None:
    """Refuse a number of expansions that no walk can work with.

    Raises:
        ArgumentError: It is below 1.
    """
    if budget is not None:
        whole_number("budget", budget, at_least=1, remedy="It counts expansions; None is no limit.")


def _refuse_beyond(budget: int | None, expansions: int, bound: float) -> None:
    if budget is not None and expansions > budget:
        raise BudgetError(
            f"budget is {budget:,} expansions, and the secrets that cost at most {bound:.2f} bits need more. "
            "Raise the budget, or estimate with method='importance'."
        )


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
    """How many secrets cost at most as much as some given ones, themselves counted exactly once.

    Attributes:
        ranks: The rank of each secret by the costs as they came out.
        fewest: Its rank if it wins every tie that rounding leaves undecided.
        most: Its rank if it loses all of them: all three are the same where there are none.
        expansions: How many nodes the model read.
        drift: How far the cost of a given secret was at most from what the walk found for it: rounding that was seen.
            Infinite if the walk did not come to one of them.
        cut: Why the count ended early; `fewest` is then what was found until then, and the others are not known. None
            if everything was counted.
        masses: With a prior, the same as the three ranks, as prior probabilities in units of `2 ** scales(prior)`.
    """

    ranks: list[int]
    fewest: list[int]
    most: list[int]
    expansions: int
    drift: float
    cut: BudgetError | None = None
    masses: tuple[list[float], list[float], list[float]] | None = None


Weigh = Callable[[Leaves], NDArray[np.float64]]
"""Gives log2 of the prior probabilities of leaves."""


def count_ranks(
    tree: SecretTree,
    paths: NDArray[np.int32],
    costs: NDArray[np.float64],
    rounding: Rounding,
    *,
    prior: NDArray[np.float64] | None = None,
    weigh: Weigh | None = None,
    budget: int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Ranks:
    """The ranks of secrets, in one walk up to the cost of the most expensive one.

    Args:
        tree: What to walk.
        paths: The secrets, all different, as token paths from the root, one row each.
        costs: Their log-perplexities, in bits, finite.
        rounding: Which costs can be told apart.
        prior: log2 of their prior probabilities; None: there is no prior.
        weigh: With a prior: gives those of leaves.
        budget: The largest number of expansions; None: as many as it takes.
        memory: The limit for model states, in bytes.
        progress: Called after each batch.
    """
    counts = RankCounts(paths, costs, rounding, prior)
    expansions, cut = 0, None
    try:
        for leaves in enumerate_leaves(tree, counts.bound, budget=budget, memory=memory, progress=progress):
            counts.add(leaves.paths, leaves.costs, None if weigh is None else weigh(leaves))
            expansions = leaves.expansions
    except BudgetError as error:
        cut = error
    return Ranks(*counts.ranks(), expansions, counts.drift, cut, counts.masses())


class RankCounts:
    """Counts, for some secrets at once, the others that are cheaper for certain and those that perhaps are.

    Args:
        paths: The secrets, all different, one row each.
        costs: Their log-perplexities, in bits.
        rounding: Which costs can be told apart.
        prior: log2 of their prior probabilities; None: there is no prior.
    """

    def __init__(
        self,
        paths: NDArray[np.int32],
        costs: NDArray[np.float64],
        rounding: Rounding,
        prior: NDArray[np.float64] | None = None,
    ) -> None:
        self._costs, self._rounding = costs, rounding
        self._own = PathFinder(paths)
        self._below, self._upto = rounding.surely_below(costs), rounding.at_most(costs)
        self._counts = Tally(len(costs))
        self._prior = prior
        self._masses = None if prior is None else Tally(len(costs), scales(prior))
        self._drifts = np.full(len(costs), math.inf)

    @property
    def bound(self) -> float:
        """Nothing that costs more can count for any of them."""
        return float(self._upto.max())

    @property
    def drift(self) -> float:
        """How far the costs of the secrets themselves came out from what was given; infinite while one is missing."""
        return float(self._drifts.max(initial=0.0))

    def add(
        self, paths: NDArray[np.int32], costs: NDArray[np.float64], prior: NDArray[np.float64] | None = None
    ) -> None:
        """Take in complete secrets, none of them twice; with a prior, also log2 of their prior probabilities."""
        order = np.argsort(costs)
        ordered = costs[order]
        positions = np.stack(
            [
                np.searchsorted(ordered, self._below, side="left"),
                np.searchsorted(ordered, self._costs, side="left"),
                np.searchsorted(ordered, self._costs, side="right"),
                np.searchsorted(ordered, self._upto, side="right"),
            ]
        )
        self._counts.add(positions)
        if self._masses is not None and prior is not None:
            self._masses.add(positions, prior[order])
        # The secret itself is counted by its path, whatever its cost came out as this time.
        for secret, leaf in self._own.find(paths):
            cost, expected = costs[leaf], self._costs[secret]
            self._drifts[secret] = abs(cost - expected)
            is_in = (cost < self._below[secret], cost == expected, cost <= expected, cost <= self._upto[secret])
            self._counts.take_out(secret, is_in)
            if self._masses is not None and prior is not None:
                self._masses.take_out(secret, is_in, float(prior[leaf]))

    def ranks(self) -> tuple[list[int], list[int], list[int]]:
        """The rank of each secret by the costs as they are, if it wins all undecided ties, and if it loses them."""
        fewest, found = self._fewest(self._counts), self._counts
        return (1 + found.cheaper).tolist(), (1 + fewest).tolist(), (1 + found.perhaps).tolist()

    def masses(self) -> tuple[list[float], list[float], list[float]] | None:
        """The same three as prior probabilities, in units of `2 ** scales(prior)`; None without a prior."""
        if self._masses is None or self._prior is None:
            return None
        own = np.exp2(self._prior - scales(self._prior))
        fewest, found = self._fewest(self._masses), self._masses
        return (own + found.cheaper).tolist(), (own + fewest).tolist(), (own + found.perhaps).tolist()

    def _fewest(self, tally: Tally) -> NDArray[Any]:
        return tally.surely + tally.equal if self._rounding.repeatable else tally.surely
