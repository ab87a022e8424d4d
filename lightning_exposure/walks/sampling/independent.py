"""At random: secrets drawn uniformly, and walks that follow the model.

For the exposure of a secret `distinct` is the better sampler. Independent walks are what an attacker does who can
only let the model speak, and the mixture of temperatures is the textbook way to estimate with them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import whole_number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.tokenization.paths import stack_rows
from lightning_exposure.tree.prompt import reads_prompt_once
from lightning_exposure.tree.secret_tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, POSSIBLE, rows_within
from lightning_exposure.walks.score import score
from lightning_exposure.walks.weighed_tree import WeighedChildren, WeighedTree

_LN2 = math.log(2.0)


@dataclass(frozen=True)
class UniformSample:
    """Secrets drawn uniformly without replacement.

    Attributes:
        secrets: Their texts.
        costs: Their log-perplexities, in bits.
        expansions: How many nodes the model read.
    """

    secrets: list[str]
    costs: NDArray[np.float64]
    expansions: int


def uniform_walks(
    tree: SecretTree, samples: int, *, seed: int, exclude: Collection[str] = (), memory: int = DEFAULT_MEMORY
) -> UniformSample:
    """Score secrets drawn uniformly from all of them: the references of the paper.

    Args:
        tree: Where the secrets live.
        samples: How many; all there are, if that is less.
        seed: The random seed of the draw.
        exclude: Secrets not to draw.
        memory: The limit for model states, in bytes.
    """
    whole_number("samples", samples, at_least=1)
    if tree.size != tree.format.size:
        raise ArgumentError(
            "tree holds only the secrets that begin with a known text; uniform references need the whole format. Use "
            "method='auto', 'exact' or 'importance'."
        )
    secrets = tree.format.sample(min(samples, tree.size - len(set(exclude))), seed, exclude=exclude)
    scores = score(tree, secrets, memory=memory)
    return UniformSample(secrets, scores.costs, scores.expansions)


@dataclass(frozen=True)
class ModelWalks:
    """Independent walks from the root that follow the model.

    Attributes:
        paths: The tokens of each walk, one row each.
        costs: The log-perplexity where each ended, in bits.
        log_probabilities: The natural logarithm of the probability of each walk under the mixture of temperatures.
        complete: Whether the walk ended at a secret; with subwords it may end at a text that is spelled differently.
        expansions: How many nodes the model read.
    """

    paths: NDArray[np.int32]
    costs: NDArray[np.float64]
    log_probabilities: NDArray[np.float64]
    complete: NDArray[np.bool_]
    expansions: int


@reads_prompt_once
def model_walks(
    tree: SecretTree,
    samples: int,
    *,
    seed: int | np.random.Generator,
    temperatures: Sequence[float] = (1.0,),
    memory: int = DEFAULT_MEMORY,
) -> ModelWalks:
    """Walk from the root, at each node choosing a token that fits with the model's probability.

    Args:
        tree: What to walk.
        samples: How many walks.
        seed: A seed or a generator.
        temperatures: Each walk uses one of these, in turn; 1 is the model itself, infinity is uniform.
        memory: The limit for model states, in bytes.
    """
    whole_number("samples", samples, at_least=1)
    if not len(temperatures) or not all(temperature > 0 for temperature in temperatures):
        raise ArgumentError(f"temperatures is {tuple(temperatures)!r}; expected numbers above 0.")
    generator = np.random.default_rng(seed)
    inverse = 1.0 / np.asarray(temperatures, dtype=np.float64)
    of_walk = np.arange(samples) % len(temperatures)
    rows = rows_within(tree, memory, blocks=3)
    parts = [_walk(tree, of_walk[at : at + rows], inverse, generator) for at in range(0, samples, rows)]
    return ModelWalks(
        paths=stack_rows([part.paths for part in parts]),
        costs=np.concatenate([part.costs for part in parts]),
        log_probabilities=np.concatenate([part.log_probabilities for part in parts]),
        complete=np.concatenate([part.complete for part in parts]),
        expansions=sum(part.expansions for part in parts),
    )


def _walk(
    tree: SecretTree, of_walk: NDArray[np.int64], inverse: NDArray[np.float64], generator: np.random.Generator
) -> ModelWalks:
    """One batch of walks, level by level; walks that stand at the same node read it together."""
    samples = len(of_walk)
    costs, log_q = np.zeros(samples), np.zeros((samples, len(inverse)))
    complete = np.zeros(samples, dtype=bool)
    steps: list[NDArray[np.int32]] = []
    children, node_of = tree.root(POSSIBLE), np.zeros(samples, dtype=np.int64)
    walking, expansions = np.arange(samples), 1
    while len(walking):
        chosen, log_choice = _choose(children, node_of, of_walk[walking], inverse, generator)
        moved = chosen >= 0  # a node may have no child left: no canonical spelling goes through it
        complete[walking[~moved]] = False
        walking, chosen, log_choice = walking[moved], chosen[moved], log_choice[moved]
        log_q[walking] += log_choice
        costs[walking] = children.costs[chosen]
        step = np.full(samples, -1, dtype=np.int32)
        step[walking] = children.tokens[chosen]
        steps.append(step)
        # A secret that is the beginning of longer ones: stop there or go on, with equal probability.
        stop, on = children.leaf[chosen], children.open[chosen]
        both = stop & on
        log_q[walking[both]] -= _LN2
        stop &= ~both | (generator.random(len(both)) < 0.5)
        complete[walking[stop]] = True
        walking, chosen = walking[~stop], chosen[~stop]
        if len(walking):
            distinct, node_of = np.unique(chosen, return_inverse=True)
            children = tree.expand(children.take(distinct), POSSIBLE)
            expansions += len(distinct)
    mixture = np.logaddexp.reduce(log_q, axis=1) - math.log(len(inverse))
    return ModelWalks(np.stack(steps, axis=1), costs, mixture, complete, expansions)


def _choose(
    children: Children,
    node_of: NDArray[np.int64],
    of_walk: NDArray[np.int64],
    inverse: NDArray[np.float64],
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A child for each walk (-1: there is none), and its log probability at each temperature."""
    counts = np.bincount(children.parents, minlength=len(children.parent_costs))
    first = np.cumsum(counts) - counts
    width = int(counts.max(initial=0))
    position = np.arange(len(children)) - first[children.parents]
    edges = np.zeros((len(counts), width))
    edges[children.parents, position] = children.edges
    fits = np.arange(width) < counts[:, None]
    nats = np.where(fits[:, :, None], -_LN2 * edges[:, :, None] * inverse, -math.inf)
    if width == 0:
        return np.full(len(node_of), -1), np.zeros((len(node_of), len(inverse)))
    total = np.logaddexp.reduce(nats, axis=1)
    log_probability = nats - np.where(np.isfinite(total), total, 0.0)[:, None, :]
    of_node = log_probability[node_of]
    mine = np.take_along_axis(of_node, of_walk[:, None, None], axis=2)[:, :, 0]
    column = np.argmax(mine + generator.gumbel(size=mine.shape), axis=1)
    chosen = np.where(counts[node_of] > 0, first[node_of] + column, -1)
    return chosen, np.take_along_axis(of_node, column[:, None, None], axis=1)[:, 0, :]


@dataclass(frozen=True)
class PriorWalks:
    """Independent walks from the root that follow the reference of a weighed tree.

    Attributes:
        paths: The tokens of each walk, one row each.
        costs: The log-perplexity of each under the model, in bits.
        prior: log2 of the prior probability of each.
        complete: Whether the walk ended at a secret; in a tree with dead ends it may not.
        expansions: How many nodes the models read.
    """

    paths: NDArray[np.int32]
    costs: NDArray[np.float64]
    prior: NDArray[np.float64]
    complete: NDArray[np.bool_]
    expansions: int


def prior_walks(
    tree: WeighedTree, samples: int, *, seed: int | np.random.Generator, memory: int = DEFAULT_MEMORY
) -> PriorWalks:
    """Draw secrets from the prior, with replacement, and price them with the model on the way.

    Args:
        tree: What to walk.
        samples: How many walks.
        seed: A seed or a generator.
        memory: The limit for model states, in bytes.
    """
    whole_number("samples", samples, at_least=1)
    generator = np.random.default_rng(seed)
    rows = rows_within(tree, memory, blocks=3)
    parts = [_prior_walk(tree, min(rows, samples - at), generator) for at in range(0, samples, rows)]
    return PriorWalks(
        paths=stack_rows([part.paths for part in parts]),
        costs=np.concatenate([part.costs for part in parts]),
        prior=np.concatenate([part.prior for part in parts]),
        complete=np.concatenate([part.complete for part in parts]),
        expansions=sum(part.expansions for part in parts),
    )


def _prior_walk(tree: WeighedTree, samples: int, generator: np.random.Generator) -> PriorWalks:
    """One batch of walks, level by level; walks that stand at the same node read it together."""
    costs, prior = np.zeros(samples), np.full(samples, -math.inf)
    complete = np.zeros(samples, dtype=bool)
    steps: list[NDArray[np.int32]] = []
    children, node_of = tree.root(), np.zeros(samples, dtype=np.int64)
    walking, expansions = np.arange(samples), 1
    while len(walking):
        chosen = _by_share(children, node_of, generator)
        walking, chosen = walking[chosen >= 0], chosen[chosen >= 0]
        costs[walking] = children.costs[chosen]
        step = np.full(samples, -1, dtype=np.int32)
        step[walking] = children.tokens[chosen]
        steps.append(step)
        stop = children.leaf[chosen] & (generator.random(len(chosen)) < np.exp2(children.ending[chosen]))
        complete[walking[stop]] = True
        prior[walking[stop]] = (children.reaching + children.ending)[chosen[stop]]
        go = ~stop & children.open[chosen]
        walking, chosen = walking[go], chosen[go]
        if len(walking):
            distinct, node_of = np.unique(chosen, return_inverse=True)
            children = tree.expand(children.take(distinct))
            expansions += len(distinct)
    return PriorWalks(np.stack(steps, axis=1), costs, prior, complete, expansions)


def _by_share(
    children: WeighedChildren, node_of: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """A child for each walk, with its share among all children; -1 if there is none."""
    shares = np.exp2(children.share)
    ends = np.concatenate([[0.0], np.cumsum(shares)])
    counts = np.bincount(children.parents, minlength=len(children.parent_costs))
    last = np.cumsum(counts)
    first = last - counts
    mass = (ends[last] - ends[first])[node_of]
    aim = ends[first[node_of]] + generator.random(len(node_of)) * mass
    chosen = np.searchsorted(ends[1:], aim, side="right")
    return np.where(mass > 0.0, np.clip(chosen, first[node_of], last[node_of] - 1), -1)
