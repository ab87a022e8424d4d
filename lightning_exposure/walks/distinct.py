"""Walks that follow the model and never come to the same secret twice: a weighted sample without replacement.

Independent walks that follow a model waste themselves on what it has memorized: they come to the same few secrets
again and again. Here every secret gets a random key, and the `samples` secrets with the largest keys are the sample.
With a key of `log weight + Gumbel noise` the largest key below a node can be drawn before anything below it is
known, and then be handed down to the children. So the sample is found from the root, level by level, by keeping the
nodes with the largest keys: as many model evaluations as independent walks, and no secret is seen twice.
(Stochastic beam search: Kool, van Hoof and Welling, 2019; the estimator is priority sampling: Duffield, Lund and
Thorup, 2007.)

A secret is in the sample if its key is above a threshold that does not depend on its own key. That gives its
inclusion probability exactly, so that `sum of f(secret) / inclusion` over the sample is an unbiased estimate of the
sum over all secrets, for any f, and the terms are uncorrelated, which gives the variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from lightning_exposure.errors import ArgumentError
from lightning_exposure.language.paths import stack_rows
from lightning_exposure.language.tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, rows_within

Floats = NDArray[np.float64]

TEMPERATURES = (1.0, 2.0, math.inf)
"""Weights are the mean of the model's distributions at these temperatures; infinity is uniform over the children."""

_LN2 = math.log(2.0)


@dataclass(frozen=True)
class Level:
    """The open nodes that were kept at one level of the tree, with the probability of each to be kept."""

    costs: Floats
    inclusion: Floats


@dataclass(frozen=True)
class DistinctWalks:
    """A weighted sample of secrets without replacement.

    Attributes:
        paths: The tokens of each secret, one row each.
        costs: Their log-perplexities, in bits.
        inclusion: The probability of each to be in the sample.
        threshold: The key that a secret needed to be in the sample; -inf if all secrets within the bound are in it.
        levels: What was kept at each level, for estimates of how large the tree is.
        expansions: How many nodes the model read.
        least: The smallest weights that the shape of the tree allows.
    """

    paths: NDArray[np.int32]
    costs: Floats
    inclusion: Floats
    threshold: float
    levels: list[Level]
    expansions: int
    least: LeastWeight

    @property
    def complete(self) -> bool:
        """Whether every secret within the bound is in the sample, so that sums over it are exact."""
        return self.threshold == -math.inf

    def least_inclusion(self, cost: float) -> float:
        """A proven lower limit of the inclusion probability of every secret that costs at most so many bits.

        It tells how many secrets one that was missed may stand for.
        """
        return float(_inclusion(np.array([self.least.log_weight(cost)]), self.threshold)[0])

    def expected_expansions(self, bound: float) -> float:
        """An unbiased estimate of how many nodes cost at most `bound`: what an exact count up to it would expand."""
        return 1.0 + sum(float((1.0 / level.inclusion[level.costs <= bound]).sum()) for level in self.levels)


@dataclass(frozen=True)
class LeastWeight:
    """The smallest weight that a secret can have, from the shape of the tree alone.

    Attributes:
        uniform: The natural logarithm of the smallest probability under uniform choices among the children.
        endings: The largest number of complete secrets that are beginnings of one longer secret; each halves weights.
    """

    uniform: float
    endings: int

    def log_weight(self, cost: float) -> float:
        """The natural logarithm of a lower limit of the weight of a secret that costs at most so many bits.

        The model's own distribution, renormalized over the tokens that fit, gives it at least `2 ** -cost`.
        """
        return max(-(cost + self.endings) * _LN2, self.uniform) - math.log(len(TEMPERATURES))


@dataclass(frozen=True)
class _Pool:
    """Open nodes and complete secrets that compete for a place in the sample."""

    keys: Floats
    components: Floats  # log probability of the way here, at each temperature
    costs: Floats
    places: NDArray[np.int64]
    paths: NDArray[np.int32]
    complete: NDArray[np.bool_]
    block: NDArray[np.int64]  # which expanded batch an open node comes from, and which of its children it is
    child: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def log_weights(self) -> Floats:
        result: Floats = logsumexp(self.components, axis=1) - math.log(len(TEMPERATURES))
        return result

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> _Pool:
        return _Pool(*(getattr(self, field.name)[which] for field in fields(self)))

    @staticmethod
    def join(parts: Sequence[_Pool]) -> _Pool:
        columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(_Pool)}
        paths = stack_rows(columns.pop("paths"))
        return _Pool(paths=paths, **{name: np.concatenate(column) for name, column in columns.items()})


def distinct_walks(
    tree: SecretTree,
    samples: int,
    *,
    seed: int | np.random.Generator,
    bound: float = math.inf,
    memory: int = DEFAULT_MEMORY,
) -> DistinctWalks:
    """Draw up to `samples` different secrets that cost at most `bound` bits, likelier ones with more probability.

    Args:
        tree: What to walk.
        samples: The size of the sample, and the largest number of nodes read per level.
        seed: A seed or a generator.
        bound: Secrets that cost more are not of interest, and are not walked to.
        memory: The limit for model states, in bytes.
    """
    if samples < 1:
        raise ArgumentError(f"samples is {samples!r}; expected at least 1 walk.")
    generator = np.random.default_rng(seed)
    bound = min(bound, np.finfo(np.float64).max)  # what the model gives no probability at all is not walked to
    expander = _Expander(tree, samples, bound, memory)
    threshold = -math.inf
    levels: list[Level] = []
    pool = _hand_down(expander.root(), 0, _root_pool(generator.gumbel()), generator)
    while True:
        pool, threshold = _keep_largest(pool, samples, threshold)
        growing, finished = pool.take(~pool.complete), pool.take(pool.complete)
        if not len(growing):
            break
        levels.append(Level(growing.costs, _inclusion(growing.log_weights, threshold)))
        grown = [
            _hand_down(children, block, parents, generator)
            for block, (children, parents) in enumerate(expander.grow(growing))
        ]
        pool = _Pool.join([finished, *grown])
    return DistinctWalks(
        paths=finished.paths,
        costs=finished.costs,
        inclusion=_inclusion(finished.log_weights, threshold),
        threshold=threshold,
        levels=levels,
        expansions=expander.expansions,
        least=least_weight(tree),
    )


class _Expander:
    """Expands the nodes of a level in batches, and keeps their states for the next level if memory allows it."""

    def __init__(self, tree: SecretTree, samples: int, bound: float, memory: int) -> None:
        self._tree, self._bound = tree, bound
        self._rows = rows_within(tree, memory, blocks=3)
        # One level's states, the next level's, and the selection in between.
        self._states_fit = 3 * samples * tree.row_bytes() <= memory
        self._blocks: list[Children] = []
        self.expansions = 0

    def root(self) -> Children:
        self.expansions = 1
        self._blocks = [self._tree.root(self._bound)]
        return self._blocks[0]

    def grow(self, nodes: _Pool) -> Iterator[tuple[Children, _Pool]]:
        """The children of nodes, batch by batch, with the nodes of the batch."""
        before, self._blocks = self._blocks, []
        for block in np.unique(nodes.block):
            of_block = nodes.take(nodes.block == block)
            for start in range(0, len(of_block), self._rows):
                part = of_block.take(np.arange(start, min(start + self._rows, len(of_block))))
                if before:
                    batch = before[block].take(part.child)
                else:
                    batch = self._tree.revive(part.paths, part.places, part.costs)
                children = self._tree.expand(batch, self._bound)
                self.expansions += len(part)
                if self._states_fit:
                    self._blocks.append(children)
                yield children, part


def least_weight(tree: SecretTree) -> LeastWeight:
    """The smallest weights that a tree's shape allows: the path with the most choices, and the most endings."""
    automaton = tree.automaton

    @cache
    def below(place: int) -> tuple[float, int]:
        if not automaton.open[place]:
            return 0.0, 0
        rest = [below(int(target)) for target in np.unique(automaton.targets[place])]
        ends_here = bool(automaton.accepting[place])
        uniform = min(log for log, _ in rest) - math.log(len(automaton.tokens[place])) - ends_here * _LN2
        return uniform, max(endings for _, endings in rest) + ends_here

    return LeastWeight(*below(0))


def _root_pool(key: float) -> _Pool:
    """The root, with the largest key of all secrets."""
    zero = np.zeros(1, dtype=np.int64)
    return _Pool(
        keys=np.array([key]),
        components=np.zeros((1, len(TEMPERATURES))),
        costs=np.zeros(1),
        places=zero,
        paths=np.empty((1, 0), dtype=np.int32),
        complete=np.zeros(1, dtype=bool),
        block=zero,
        child=zero,
    )


def _hand_down(children: Children, block: int, parents: _Pool, generator: np.random.Generator) -> _Pool:
    """The children of nodes as competitors: their weights, and keys of which the largest is their parent's."""
    edges = children.costs - parents.costs[children.parents]
    components = parents.components[children.parents] + _log_choices(edges, children.parents)
    # A child that is complete and goes on competes twice, as itself and as what is below it: half the weight each.
    twice = children.leaf & children.open
    components[twice] -= _LN2
    both = np.flatnonzero(twice)
    child = np.concatenate([np.arange(len(children)), both])
    complete = np.concatenate([children.leaf & ~twice, np.ones(len(both), dtype=bool)])
    order = np.argsort(children.parents[child], kind="stable")
    child, complete = child[order], complete[order]
    parent = children.parents[child]
    weights = logsumexp(components[child], axis=1) - math.log(len(TEMPERATURES))
    keys = _keys_below(parents.keys[parent], parent, weights, generator)
    return _Pool(
        keys=keys,
        components=components[child],
        costs=children.costs[child],
        places=children.places[child],
        paths=children.paths(child),
        complete=complete,
        block=np.full(len(child), block),
        child=child,
    )


def _log_choices(edges: Floats, parents: NDArray[np.int64]) -> Floats:
    """The log probability of each child among its siblings at each temperature `(children, temperatures)`."""
    nats = np.stack([-edges * _LN2 / temperature for temperature in TEMPERATURES], axis=1)
    first, of = _families(parents)
    if not len(first):
        return nats
    largest = np.maximum.reduceat(nats, first)[of]
    total = np.log(np.add.reduceat(np.exp(nats - largest), first))[of] + largest
    result: Floats = nats - total
    return result


def _keys_below(
    parent_keys: Floats, parents: NDArray[np.int64], log_weights: Floats, generator: np.random.Generator
) -> Floats:
    """Gumbel keys of siblings, given that the largest of them is their parent's key."""
    free = log_weights + generator.gumbel(size=len(log_weights))
    first, of = _families(parents)
    if not len(first):
        return free
    below_largest = free - np.maximum.reduceat(free, first)[of]
    shift = parent_keys - free + _log1mexp(below_largest)
    result: Floats = parent_keys - np.maximum(shift, 0.0) - np.log1p(np.exp(-np.abs(shift)))
    return result


def _families(parents: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each run of siblings begins, and which run each child is in."""
    begins = np.ones(len(parents), dtype=bool)
    begins[1:] = parents[1:] != parents[:-1]
    return np.flatnonzero(begins), np.cumsum(begins) - 1


def _log1mexp(x: Floats) -> Floats:
    """log(1 - exp(x)) for x <= 0, precise at both ends; -inf at 0."""
    with np.errstate(divide="ignore"):
        result: Floats = np.where(x > -_LN2, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
    return result


def _keep_largest(pool: _Pool, samples: int, threshold: float) -> tuple[_Pool, float]:
    """The competitors above the threshold, which rises to the first key that there is no place for."""
    if len(pool) > samples:
        threshold = max(threshold, float(np.partition(pool.keys, -samples - 1)[-samples - 1]))
    return pool.take(pool.keys > threshold), threshold


def _inclusion(log_weights: Floats, threshold: float) -> Floats:
    """The probability that a Gumbel key with this weight is above the threshold."""
    if threshold == -math.inf:
        return np.ones(len(log_weights))
    result: Floats = -np.expm1(-np.exp(log_weights - threshold))
    return result
