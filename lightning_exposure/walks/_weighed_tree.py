"""`WeighedTree`: a tree whose nodes also carry what a reference model expects of them, before the secret is known.

Two models read the same nodes in step. The one puts the price on them that walks go by. The other gives every secret
its prior probability: the reference's probabilities renormalised among *all* children of every node, before anything
is pruned, so that they add up to 1 over the secrets. Where there is only one child, as in fixed text, it costs nothing.
Where a secret can end and another one goes on, ending gets the reference's probability of no continuing token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_exposure.adapters.protocol import StepModel, device_of
from lightning_exposure.adapters.states import State
from lightning_exposure.tokenization.paths import path_keys, stack_rows
from lightning_exposure.tree.path_reader import PathReader, Reading
from lightning_exposure.tree.prices import price_children
from lightning_exposure.tree.secret_tree import Children, Nodes, SecretTree
from lightning_exposure.walks._families import families

Floats = NDArray[np.float64]

_LN2 = math.log(2.0)
_LISTED = 2**16
"""Of a tree with so few secrets that may have dead ends, all secrets are listed to know them."""


@dataclass(frozen=True)
class WeighedNodes(Nodes):
    """Nodes to expand.

    Attributes:
        through: log2 of the prior probability of the secrets that go on behind each node.
    """

    through: Floats


@dataclass(frozen=True)
class WeighedChildren(Children):
    """Children with what the reference expects.

    Attributes:
        share: log2 of the prior probability of each child among its siblings, those beyond the bound included.
        ending: log2 of the probability that a secret ends at the child once it is reached: 0 where none goes on.
        onward: log2 of the probability that it goes on.
        through: log2 of the prior probability of the secrets behind each parent.
    """

    share: Floats
    ending: Floats
    onward: Floats
    through: Floats

    @property
    def reaching(self) -> Floats:
        """log2 of the prior probability of the secrets that begin with each child."""
        return self.through[self.parents] + self.share

    def take(self, which: NDArray[np.intp]) -> WeighedNodes:
        """Some of the children as nodes to expand."""
        nodes = super().take(which)
        through = (self.reaching + self.onward)[which]
        return WeighedNodes(nodes.state, nodes.tokens, nodes.places, nodes.costs, nodes.paths, through)


def leaf_prior(children: Children, which: NDArray[np.intp]) -> Floats | None:
    """log2 of the prior probability of complete secrets among children; None if the tree is not weighed."""
    if not isinstance(children, WeighedChildren):
        return None
    prior: Floats = (children.reaching + children.ending)[which]
    return prior


def join_nodes(model: StepModel, parts: Sequence[Nodes]) -> Nodes:
    """Several batches of nodes as one."""
    if len(parts) == 1:
        return parts[0]
    columns = (
        model.concatenate([part.state for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.places for part in parts]),
        np.concatenate([part.costs for part in parts]),
        stack_rows([part.paths for part in parts]),
    )
    through = [part.through for part in parts if isinstance(part, WeighedNodes)]
    return WeighedNodes(*columns, np.concatenate(through)) if through else Nodes(*columns)


class WeighedTree(SecretTree):
    """A tree and a reference that read in step.

    Args:
        tree: What walks go by.
        reference: What the prior comes from: a tree of the same format and tokenizer.
    """

    def __init__(self, tree: SecretTree, reference: SecretTree) -> None:
        self.__dict__.update(tree.__dict__)
        self._tree = tree
        # The same places by the same numbers, and the same beginning, if a part of the secret is known.
        self._reference = copy(reference)
        self._reference.spelling, self._reference.automaton = tree.spelling, tree.automaton
        self.model = _BothModels(tree.model, reference.model)
        self._alive = _alive(tree)

    @property
    def has_dead_ends(self) -> bool:
        """Whether a part of the prior may lead to no secret, so that it adds up to a little less than 1."""
        return not self.spelling.exact and self._alive is None

    def root(self, bound: float = math.inf) -> WeighedChildren:
        """Read the prompt with both models."""
        children = self._tree.root(bound)
        with self._reference.reader() as reader:
            return self._weighed(children, reader, reader.start(), _places(self.automaton.start), np.zeros(1))

    def expand(self, nodes: Nodes, bound: float = math.inf) -> WeighedChildren:
        """Read the token of each node with both models."""
        assert isinstance(nodes, WeighedNodes), "the nodes are of a tree without a reference"
        own, other = nodes.state
        children = self._tree.expand(Nodes(own, nodes.tokens, nodes.places, nodes.costs, nodes.paths), bound)
        with self._reference.reader() as reader:
            return self._weighed(children, reader, reader.step(other, nodes.tokens), nodes.places, nodes.through)

    def revive(
        self,
        paths: NDArray[np.int32],
        places: NDArray[np.int64],
        costs: Floats,
        through: Floats | None = None,
    ) -> WeighedNodes:
        """Nodes whose states were dropped to save memory: both models read them again."""
        assert through is not None, "a prior is not computed again"
        own = self._tree.revive(paths, places, costs)
        other = self._reference.revive(paths, places, costs)
        return WeighedNodes((own.state, other.state), own.tokens, places, costs, paths, through)

    def row_bytes(self) -> int:
        """The memory one node takes in both models."""
        return self._tree.row_bytes() + self._reference.row_bytes()

    def _weighed(
        self, children: Children, reader: PathReader, reading: Reading, places: NDArray[np.int64], through: Floats
    ) -> WeighedChildren:
        """The children within the bound, with their shares among all children."""
        parents, tokens, bits = self._all_children(reading.logits, places, children.parent_paths)
        stride = int(tokens.max(initial=0)) + 1
        at = np.searchsorted(parents * stride + tokens, children.parents * stride + children.tokens)
        at = np.minimum(at, len(tokens) - 1)
        share = np.full(len(children), -math.inf)  # what leads to no secret has no share
        if len(tokens):
            known = (parents[at] == children.parents) & (tokens[at] == children.tokens)
            share[known] = renormalised(-bits, parents)[at[known]]
        both = np.flatnonzero(children.leaf & children.open)
        ending = np.where(children.leaf, 0.0, -math.inf)
        onward = np.zeros(len(children))
        for first in range(0, len(both), self.batch_size):
            some = both[first : first + self.batch_size]
            ending[some], onward[some] = self._stop_or_go(reader, reading.state, children, some)
        columns = {name: getattr(children, name) for name in Children.__dataclass_fields__}
        state = (children.state, reading.state)
        columns |= {"model": self.model, "state": state}
        return WeighedChildren(**columns, share=share, ending=ending, onward=onward, through=through)

    def _all_children(
        self, logits: Tensor, places: NDArray[np.int64], paths: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Parents and tokens of all children that lead to a secret, and what the reference says they cost."""
        parents, tokens, targets, bits = price_children(self.automaton, logits, places, np.zeros(len(places)), math.inf)
        if self.spelling.exact:
            return parents, tokens, bits
        leaf, is_open = self.automaton.accepting[targets], self.automaton.open[targets]
        none = np.zeros(len(places))
        found = Children(self.model, None, parents, tokens, targets, bits, leaf, is_open, none, paths)
        everyone = found.paths(np.arange(len(found)))
        if self._alive is not None:
            kept = np.isin(path_keys(everyone), self._alive)
        else:
            kept = is_open.copy()
            ends = np.flatnonzero(leaf & ~is_open)
            kept[ends] = self.spelling.canonical(everyone[ends])
        return parents[kept], tokens[kept], bits[kept]

    def _stop_or_go(
        self, reader: PathReader, state: State, children: Children, which: NDArray[np.intp]
    ) -> tuple[Floats, Floats]:
        """log2 of the probabilities to end at complete secrets, and to go on to longer ones."""
        rows = children.parents[which]
        reading = reader.step(reader.select(state, rows), children.tokens[which])
        parents, tokens, _ = self._all_children(reading.logits, children.places[which], children.paths(which))
        logits = reading.logits.double().cpu()
        goes_on = torch.zeros(logits.shape, dtype=torch.bool)
        goes_on[torch.from_numpy(parents), torch.from_numpy(tokens)] = True
        whole = logits.logsumexp(dim=1)
        ends = logits.masked_fill(goes_on, -math.inf).logsumexp(dim=1) - whole
        goes = logits.masked_fill(~goes_on, -math.inf).logsumexp(dim=1) - whole
        return ends.numpy() / _LN2, goes.numpy() / _LN2


def renormalised(log_shares: Floats, parents: NDArray[np.int64]) -> Floats:
    """log2 of shares, made to add up to 1 among siblings; where all of them are impossible they share alike.

    Example:
        >>> renormalised(np.array([-2.0, -2.0, -5.0]), np.array([0, 0, 1])).tolist()
        [-1.0, -1.0, 0.0]
    """
    first, of = families(parents)
    if not len(first):
        return log_shares
    largest = np.maximum.reduceat(log_shares, first)[of]
    log_shares = np.where(np.isneginf(largest), 0.0, log_shares)
    largest = np.where(np.isneginf(largest), 0.0, largest)
    total = np.log2(np.add.reduceat(np.exp2(log_shares - largest), first))[of]
    result: Floats = log_shares - largest - total
    return result


def _alive(tree: SecretTree) -> NDArray[np.uint64] | None:
    """Keys of all beginnings of secrets, if dead ends are possible and the secrets are few enough to be listed."""
    if tree.spelling.exact or tree.size != tree.format.size or tree.size > _LISTED:
        return None
    paths = tree.paths([tree.format.render(number) for number in range(tree.size)])
    return np.unique(np.concatenate([path_keys(paths[:, : 1 + level]) for level in range(paths.shape[1])]))


def _places(start: int) -> NDArray[np.int64]:
    return np.full(1, start, dtype=np.int64)


class _BothModels:
    """States of two models as pairs."""

    def __init__(self, own: StepModel, other: StepModel) -> None:
        self._own, self._other = own, other

    @property
    def module(self) -> nn.Module:
        """The one that walks go by."""
        return self._own.module

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, State]:
        raise AssertionError("both models are read by their trees")

    def step(self, state: State, tokens: Tensor, /) -> tuple[Tensor, State]:
        raise AssertionError("both models are read by their trees")

    def select(self, state: Any, rows: Tensor, /) -> State:
        return self._own.select(state[0], rows), self._other.select(state[1], rows.to(device_of(self._other.module)))

    def concatenate(self, states: Sequence[Any], /) -> State:
        return self._own.concatenate([own for own, _ in states]), self._other.concatenate([it for _, it in states])

    def bytes_of(self, state: Any, /) -> int:
        return self._own.bytes_of(state[0]) + self._other.bytes_of(state[1])
