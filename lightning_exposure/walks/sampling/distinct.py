"""Walks that follow the model and never come to the same secret twice: a weighted sample without replacement.

Independent walks that follow a model waste themselves on what it has memorized: they come to the same few secrets
again and again. Here every secret gets a random key, and the `samples` secrets with the largest keys are the sample.
With a key of `log weight + Gumbel noise` the largest key below a node can be drawn before anything below it is
known, and then be handed down to the children. So the sample is found from the root, level by level, by keeping the
nodes with the largest keys: as many model evaluations as independent walks, and no secret is seen twice.
(Stochastic beam search: Kool, van Hoof and Welling, 2019; the estimator is priority sampling: Duffield, Lund and
Thorup, 2007.)

A sample can be enlarged: what was read for the smaller one is not read again, and the smaller one is part of it.

A secret is in the sample if its key is above a threshold that does not depend on its own key. That gives its
inclusion probability exactly, so that `sum of f(secret) / inclusion` over the sample is an unbiased estimate of the
sum over all secrets, for any f, and the terms are uncorrelated, which gives the variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import whole_number
from lightning_exposure.tree.secret_tree import Children, Nodes, SecretTree
from lightning_exposure.walks._families import families
from lightning_exposure.walks.batches import DEFAULT_MEMORY, POSSIBLE, rows_within
from lightning_exposure.walks.sampling._competitors import COMPLETE, DEAD, OPEN, Passed, Pool
from lightning_exposure.walks.sampling.weights import (
    PRIOR_SHARE,
    TEMPERATURES,
    WeightFloor,
    at_forks,
    log_choices,
    mixed,
    tempered,
)
from lightning_exposure.walks.weighed_tree import WeighedChildren, WeighedTree, join_nodes

Floats = NDArray[np.float64]

_LN2 = math.log(2.0)


@dataclass(frozen=True)
class DistinctWalks:
    """A weighted sample of secrets without replacement.

    Attributes:
        paths: The tokens of each secret, one row each.
        costs: Their log-perplexities, in bits.
        inclusion: The probability of each to be in the sample.
        threshold: The key that a secret needed to be in the sample; -inf if all secrets within the bound are in it.
        node_costs: The costs of the nodes on the way whose keys are above the threshold.
        node_inclusion: The probability of each of them.
        expansions: How many nodes the model read.
        floor: The smallest weights that the levels leave to a secret.
        prior: log2 of their prior probabilities, if the tree is a `WeighedTree`.
    """

    paths: NDArray[np.int32]
    costs: Floats
    inclusion: Floats
    threshold: float
    node_costs: Floats
    node_inclusion: Floats
    expansions: int
    floor: WeightFloor
    prior: Floats | None = None

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

    def heaviest_mass(self, inclusion: float) -> float:
        """How much prior probability a secret that was missed may stand for at most, spread included.

        A secret weighs at least `PRIOR_SHARE` of its prior probability. So its prior over its inclusion probability,
        times the square root of the chance to miss it, has a limit that falls with its inclusion probability.

        Args:
            inclusion: The smallest probability to be in the sample that the secret can have.
        """
        if inclusion >= 1.0 or self.complete:
            return 0.0
        keys = -math.log1p(-inclusion)
        falls = 1.0 if keys < 1e-6 else 0.5 * keys / math.sinh(0.5 * keys) if keys < 1000.0 else 0.0
        return math.exp(self.threshold) / PRIOR_SHARE * falls

    def expected_expansions(self, bound: float) -> float:
        """An estimate of how many nodes cost at most `bound`: what an exact count up to it would expand."""
        return 1.0 + float((1.0 / self.node_inclusion[self.node_costs <= bound]).sum())


def distinct_walks(
    tree: SecretTree,
    samples: int,
    *,
    seed: int | np.random.Generator,
    bound: float = math.inf,
    memory: int = DEFAULT_MEMORY,
) -> DistinctWalks:
    """Draw up to `samples` different secrets that cost at most `bound` bits, more likely ones with more probability.

    Args:
        tree: What to walk.
        samples: The size of the sample.
        seed: A seed or a generator.
        bound: Secrets that cost more are not of interest, and are not walked to.
        memory: The limit for model states, in bytes.
    """
    return DistinctSampler(tree, samples, seed=seed, bound=bound, memory=memory).draw(samples)


class DistinctSampler:
    """Draws samples that grow: each contains the one before, and costs only what it adds.

    Args:
        tree: What to walk.
        most: The size of the largest sample that will be asked for.
        seed: A seed or a generator.
        bound: Secrets that cost more are not of interest, and are not walked to.
        memory: The limit for model states, in bytes.
    """

    def __init__(
        self,
        tree: SecretTree,
        most: int,
        *,
        seed: int | np.random.Generator,
        bound: float = math.inf,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        whole_number("samples", most, at_least=1)
        self._most = most
        self._generator = np.random.default_rng(seed)
        self._dropped = -math.inf  # the largest key that there was no place for
        self._passed: list[Passed] = []
        self._prompt = tree.prompt
        with self._prompt.kept():
            self._expander = _Expander(tree, min(bound, POSSIBLE), memory)
            columns = len(TEMPERATURES) + self._expander.weighed
            self._pool = self._hand_down(*self._expander.root(_root_pool(self._generator.gumbel(), columns)))

    def draw(self, samples: int) -> DistinctWalks:
        """The sample of a size, at least as large as the last one and at most as large as was said."""
        with self._prompt.kept():
            chosen, threshold = self._grow_to(samples)
        found = self._pool.take(chosen[self._pool.kind[chosen] == COMPLETE])
        passed = Passed.join(self._passed).above(threshold)
        return DistinctWalks(
            paths=found.paths,
            costs=found.costs,
            inclusion=_inclusion(found.log_weights, threshold),
            threshold=threshold,
            node_costs=passed.costs,
            node_inclusion=_inclusion(passed.log_weights, threshold),
            expansions=self._expander.expansions,
            floor=self._expander.floor(),
            prior=found.prior if self._expander.weighed else None,
        )

    def _grow_to(self, samples: int) -> tuple[NDArray[np.intp], float]:
        """Expand what has the largest keys until none of the chosen is open: the chosen, and the first key left out."""
        while True:
            self._drop_small_keys()
            chosen, threshold = self._largest(samples)
            growing = chosen[self._pool.kind[chosen] == OPEN]
            if not len(growing):
                return chosen, threshold
            nodes = self._pool.take(growing)
            self._passed.append(Passed(nodes.keys, nodes.log_weights, nodes.costs))
            rest = np.ones(len(self._pool), dtype=bool)
            rest[growing] = False
            grown = [self._hand_down(*expanded) for expanded in self._expander.grow(nodes)]
            self._pool = Pool.join([self._pool.take(rest), *grown])
            self._expander.forget_all_but(self._pool.block[self._pool.kind == OPEN])

    def _drop_small_keys(self) -> None:
        """Give up what cannot come into the largest sample: the key that just fails is what the others are held to."""
        if len(self._pool) > self._most:
            first_out = float(np.partition(self._pool.keys, -self._most - 1)[-self._most - 1])
            self._dropped = max(self._dropped, first_out)
            self._pool = self._pool.take(self._pool.keys > self._dropped)

    def _largest(self, samples: int) -> tuple[NDArray[np.intp], float]:
        """The competitors with the largest keys, and the first key that there is no place for."""
        if len(self._pool) <= samples:
            return np.arange(len(self._pool)), self._dropped
        threshold = float(np.partition(self._pool.keys, -samples - 1)[-samples - 1])
        return np.flatnonzero(self._pool.keys > threshold), threshold

    def _hand_down(self, children: Children, block: int, parents: Pool) -> Pool:
        """The children of nodes as competitors: their weights, and keys of which the largest is their parent's.

        A node without children within the bound stays in the competition as what it is: a dead end with a key. If it
        gave up its place, the threshold would depend on what was found.
        """
        choices = log_choices(children)
        twice = children.leaf & children.open
        both = np.flatnonzero(twice)
        child = np.concatenate([np.arange(len(children)), both])
        complete = np.concatenate([children.leaf & ~twice, np.ones(len(both), dtype=bool)])
        order = np.argsort(children.parents[child], kind="stable")
        child, complete = child[order], complete[order]
        parent = children.parents[child]
        components = parents.components[parent] + at_forks(children, choices, child, complete)
        weights = mixed(components)
        alive = Pool(
            keys=_keys_below(parents.keys[parent], parent, weights, self._generator),
            components=components,
            costs=children.costs[child],
            places=children.places[child],
            paths=children.paths(child),
            kind=np.where(complete, COMPLETE, OPEN),
            block=np.full(len(child), block),
            child=child,
            prior=_prior_of(children, child, complete),
        )
        childless = np.setdiff1d(np.arange(len(parents)), parent)
        if not len(childless):
            return alive
        dead = parents.take(childless)
        return Pool.join([alive, replace(dead, kind=np.full(len(dead), DEAD))])


class _Expander:
    """Expands nodes in batches, and keeps the states of what may be expanded later as far as memory allows it."""

    def __init__(self, tree: SecretTree, bound: float, memory: int) -> None:
        self._tree, self._bound = tree, bound
        self._rows = rows_within(tree, memory, blocks=3)
        # A third for the batch that is read, a third for what comes out of it, a third for what waits.
        self._room = memory // 3
        self._blocks: dict[int, Children] = {}
        self._next = 0
        self._masses = np.full((tree.automaton.depth + 1, len(TEMPERATURES)), -math.inf)
        self.expansions = 0
        self.weighed = isinstance(tree, WeighedTree)

    def root(self, pool: Pool) -> tuple[Children, int, Pool]:
        """The children of the root, which is all of the given pool."""
        return self._expanded(self._tree.root(self._bound), pool)

    def floor(self) -> WeightFloor:
        """The smallest weights that the levels leave to a secret."""
        automaton = self._tree.automaton
        share = 1.0 - PRIOR_SHARE if self.weighed else 1.0
        return WeightFloor(self._masses.copy(), automaton.shortest, automaton.interruptions, share)

    def grow(self, nodes: Pool) -> Iterator[tuple[Children, int, Pool]]:
        """The children of nodes, batch by batch, with the number of the batch and the nodes in it."""
        kept = np.isin(nodes.block, list(self._blocks))
        for part in (np.flatnonzero(kept), np.flatnonzero(~kept)):
            part = part[np.argsort(nodes.block[part], kind="stable")]
            for start in range(0, len(part), self._rows):
                batch = nodes.take(part[start : start + self._rows])
                yield self._expanded(self._tree.expand(self._with_states(batch), self._bound), batch)
        self._make_room()

    def forget_all_but(self, waiting: NDArray[np.int64]) -> None:
        """Give up the states of batches of which no node waits any more."""
        for number in self._blocks.keys() - set(np.unique(waiting).tolist()):
            del self._blocks[number]

    def _with_states(self, batch: Pool) -> Nodes:
        """Nodes to expand: from the states that were kept, or read again from the root."""
        if int(batch.block[0]) not in self._blocks:
            if isinstance(self._tree, WeighedTree):
                return self._tree.revive(batch.paths, batch.places, batch.costs, batch.prior)
            return self._tree.revive(batch.paths, batch.places, batch.costs)
        numbers, first = np.unique(batch.block, return_index=True)
        parts = [
            self._blocks[int(number)].take(child)
            for number, child in zip(numbers, np.split(batch.child, first[1:]), strict=True)
        ]
        return join_nodes(self._tree.model, parts)

    def _expanded(self, children: Children, nodes: Pool) -> tuple[Children, int, Pool]:
        self.expansions += len(nodes)
        self._note(children)
        number, self._next = self._next, self._next + 1
        self._blocks[number] = children
        return children, number, nodes

    def _make_room(self) -> None:
        """Give up the oldest states: they have waited longest, and may never be needed."""
        sizes = {number: self._tree.model.bytes_of(block.state) for number, block in self._blocks.items()}
        total = sum(sizes.values())
        for number in sorted(sizes):
            if total <= self._room:
                return
            total -= sizes[number]
            del self._blocks[number]

    def _note(self, children: Children) -> None:
        """Keep the largest masses of each level."""
        first, _ = families(children.parents)
        if len(first):
            masses = np.logaddexp.reduceat(tempered(children), first, axis=0)
            levels = (children.parent_paths >= 0).sum(axis=1)[children.parents[first]]
            np.maximum.at(self._masses, levels, masses)


def _root_pool(key: float, columns: int) -> Pool:
    """The root, with the largest key of all secrets."""
    zero = np.zeros(1, dtype=np.int64)
    return Pool(
        keys=np.array([key]),
        components=np.zeros((1, columns)),
        costs=np.zeros(1),
        places=zero,
        paths=np.empty((1, 0), dtype=np.int32),
        kind=zero,
        block=zero,
        child=zero,
        prior=np.zeros(1),
    )


def _prior_of(children: Children, child: NDArray[np.intp], complete: NDArray[np.bool_]) -> Floats:
    """log2 of the prior probabilities of competitors; 0 without a prior."""
    if not isinstance(children, WeighedChildren):
        return np.zeros(len(child))
    return children.reaching[child] + np.where(complete, children.ending[child], children.onward[child])


def _keys_below(
    parent_keys: Floats, parents: NDArray[np.int64], log_weights: Floats, generator: np.random.Generator
) -> Floats:
    """Gumbel keys of siblings, given that the largest of them is their parent's key."""
    free = log_weights + generator.gumbel(size=len(log_weights))
    first, of = families(parents)
    if not len(first):
        return free
    below_largest = free - np.maximum.reduceat(free, first)[of]
    shift = parent_keys - free + _log1mexp(below_largest)
    result: Floats = parent_keys - np.maximum(shift, 0.0) - np.log1p(np.exp(-np.abs(shift)))
    return result


def _log1mexp(x: Floats) -> Floats:
    """log(1 - exp(x)) for x <= 0, precise at both ends; -inf at 0."""
    with np.errstate(divide="ignore"):
        result: Floats = np.where(x > -_LN2, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
    return result


def _inclusion(log_weights: Floats, threshold: float) -> Floats:
    """The probability that a Gumbel key with this weight is above the threshold."""
    if threshold == -math.inf:
        return np.ones(len(log_weights))
    result: Floats = -np.expm1(-np.exp(log_weights - threshold))
    return result
