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

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from lightning_exposure.errors import ArgumentError
from lightning_exposure.language.paths import stack_rows
from lightning_exposure.language.tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, POSSIBLE, rows_within
from lightning_exposure.walks.score import follow

Floats = NDArray[np.float64]

TEMPERATURES = (0.25, 0.5, 1.0, 2.0, math.inf)
"""Weights are the mean of the model's distributions at these temperatures; infinity is uniform over the children."""

_INVERSE = 1.0 / np.array(TEMPERATURES)
_LN2 = math.log(2.0)


@dataclass(frozen=True)
class Level:
    """The open nodes that were kept at one level of the tree, with the probability of each to be kept."""

    costs: Floats
    inclusion: Floats


@dataclass(frozen=True)
class WeightFloor:
    """The smallest weight that a secret can have, as far as the nodes that were seen tell.

    Attributes:
        masses: For each level and temperature, the largest log of what the probabilities of all tokens that fit, raised
            to the inverse temperature, add up to `(levels, temperatures)`.
        shortest: How many tokens the shortest secret has.
        halvings: The largest number of times that a weight is halved because a secret goes on after another one ends.
    """

    masses: Floats
    shortest: int
    halvings: int

    def log_weight(self, cost: float) -> float:
        """The natural logarithm of a lower limit of the weight of the secrets that cost at most so many bits.

        At inverse temperature b a path of that cost has a probability of at least `2 ** (-b * cost)` over the product
        of the masses that it shares with its siblings; the mixture has at least its part of the best of them.
        """
        # Longer secrets than the shortest may skip the levels behind it: a mass below 1 must not help them there.
        masses = self.masses[np.isfinite(self.masses).all(axis=1)]  # at the last level nothing may have been left
        masses[self.shortest :] = np.maximum(masses[self.shortest :], 0.0)
        by_temperature = -_INVERSE * cost * _LN2 - masses.sum(axis=0)
        return float(by_temperature.max()) - self.halvings * _LN2 - math.log(len(TEMPERATURES))


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
        floor: The smallest weights that the levels leave to a secret.
    """

    paths: NDArray[np.int32]
    costs: Floats
    inclusion: Floats
    threshold: float
    levels: list[Level]
    expansions: int
    floor: WeightFloor

    @property
    def complete(self) -> bool:
        """Whether every secret within the bound is in the sample, so that sums over it are exact."""
        return self.threshold == -math.inf

    def inclusion_of(self, log_weights: Floats) -> Floats:
        """The probability to be in the sample, of secrets of the given weights (see `log_weights`)."""
        return _inclusion(log_weights, self.threshold)

    def least_inclusion(self, cost: float) -> float:
        """About the smallest inclusion probability of a secret that costs at most so many bits.

        It tells how many secrets one that was missed may stand for.
        """
        return float(_inclusion(np.array([self.floor.log_weight(cost)]), self.threshold)[0])

    def expected_expansions(self, bound: float) -> float:
        """An unbiased estimate of how many nodes cost at most `bound`: what an exact count up to it would expand."""
        return 1.0 + sum(float((1.0 / level.inclusion[level.costs <= bound]).sum()) for level in self.levels)


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
        return _mixed(self.components)

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
    expander = _Expander(tree, samples, min(bound, POSSIBLE), memory)
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
        floor=expander.floor(),
    )


class _Expander:
    """Expands the nodes of a level in batches, and keeps their states for the next level if memory allows it."""

    def __init__(self, tree: SecretTree, samples: int, bound: float, memory: int) -> None:
        self._tree, self._bound = tree, bound
        self._rows = rows_within(tree, memory, blocks=3)
        # One level's states, the next level's, and the selection in between.
        self._states_fit = 3 * samples * tree.row_bytes() <= memory
        self._blocks: list[Children] = []
        self._masses: list[Floats] = []
        self.expansions = 0

    def root(self) -> Children:
        self.expansions = 1
        self._blocks = [self._tree.root(self._bound)]
        self._begin_level()
        self._note(self._blocks[0])
        return self._blocks[0]

    def floor(self) -> WeightFloor:
        """The smallest weights that the levels leave to a secret."""
        automaton = self._tree.automaton
        halvings = automaton.interruptions
        return WeightFloor(np.stack(self._masses), automaton.shortest, halvings)

    def _begin_level(self) -> None:
        self._masses.append(np.full(len(TEMPERATURES), -math.inf))

    def _note(self, children: Children) -> None:
        """Keep the largest masses of this level."""
        first, _ = _families(children.parents)
        if len(first):
            masses = np.logaddexp.reduceat(_tempered(children), first, axis=0)
            self._masses[-1] = np.maximum(self._masses[-1], masses.max(axis=0))

    def grow(self, nodes: _Pool) -> Iterator[tuple[Children, _Pool]]:
        """The children of nodes, batch by batch, with the nodes of the batch."""
        before, self._blocks = self._blocks, []
        self._begin_level()
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
                self._note(children)
                if self._states_fit:
                    self._blocks.append(children)
                yield children, part


def log_weights(
    tree: SecretTree, paths: NDArray[np.int32], *, bound: float = math.inf, memory: int = DEFAULT_MEMORY
) -> Floats:
    """The natural logarithms of the weights that `distinct_walks` gives to secrets, without drawing them.

    Args:
        tree: What to walk.
        paths: The secrets, one row each; none may cost more than the bound.
        bound: As for `distinct_walks`.
        memory: The limit for model states, in bytes.
    """
    components = np.zeros((len(paths), len(TEMPERATURES)))
    for step in follow(tree, paths, bound=min(bound, POSSIBLE), memory=memory):
        components[step.rows] += _log_choices(step.children)[step.child]
    return _mixed(components)


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
    components = parents.components[children.parents] + _log_choices(children)
    twice = children.leaf & children.open
    both = np.flatnonzero(twice)
    child = np.concatenate([np.arange(len(children)), both])
    complete = np.concatenate([children.leaf & ~twice, np.ones(len(both), dtype=bool)])
    order = np.argsort(children.parents[child], kind="stable")
    child, complete = child[order], complete[order]
    parent = children.parents[child]
    weights = _mixed(components[child])
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


def _mixed(components: Floats) -> Floats:
    """The log weight of the mixture of temperatures."""
    result: Floats = logsumexp(components, axis=1) - math.log(len(TEMPERATURES))
    return result


def _tempered(children: Children) -> Floats:
    """The log probability of each child's token, divided by each temperature `(children, temperatures)`."""
    result: Floats = -children.edges[:, None] * _LN2 * _INVERSE
    return result


def _log_choices(children: Children) -> Floats:
    """The log probability of each child among its siblings at each temperature `(children, temperatures)`."""
    nats = _tempered(children)
    first, of = _families(children.parents)
    if not len(first):
        return nats
    largest = np.maximum.reduceat(nats, first)[of]
    total = np.log(np.add.reduceat(np.exp(nats - largest), first))[of] + largest
    # A child that is complete and goes on competes twice, as itself and as what is below it: half the weight each.
    result: Floats = nats - total - _LN2 * (children.leaf & children.open)[:, None]
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
