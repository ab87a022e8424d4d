"""What a secret weighs when secrets are drawn at random: the model's own distribution at several temperatures at once.

Weights are the mean of the model's distributions at a few temperatures, among the tokens that fit and lie within the
bound. Low temperatures find what the model likes most, infinity finds what it likes least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from lightning_exposure.tree.secret_tree import Children, SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, POSSIBLE
from lightning_exposure.walks.score import follow

Floats = NDArray[np.float64]

TEMPERATURES = (0.25, 0.5, 1.0, 2.0, math.inf)
"""Weights are the mean of the model's distributions at these temperatures; infinity is uniform over the children."""

_INVERSE = 1.0 / np.array(TEMPERATURES)
_LN2 = math.log(2.0)


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
        components[step.rows] += log_choices(step.children)[step.child]
    return mixed(components)


def mixed(components: Floats) -> Floats:
    """The log weight of the mixture of temperatures."""
    result: Floats = logsumexp(components, axis=1) - math.log(len(TEMPERATURES))
    return result


def tempered(children: Children) -> Floats:
    """The log probability of each child's token, divided by each temperature `(children, temperatures)`."""
    result: Floats = -children.edges[:, None] * _LN2 * _INVERSE
    return result


def log_choices(children: Children) -> Floats:
    """The log probability of each child among its siblings at each temperature `(children, temperatures)`."""
    nats = tempered(children)
    first, of = families(children.parents)
    if not len(first):
        return nats
    largest = np.maximum.reduceat(nats, first)[of]
    total = np.log(np.add.reduceat(np.exp(nats - largest), first))[of] + largest
    # A child that is complete and goes on competes twice, as itself and as what is below it: half the weight each.
    result: Floats = nats - total - _LN2 * (children.leaf & children.open)[:, None]
    return result


def families(parents: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where each run of siblings begins, and which run each child is in."""
    begins = np.ones(len(parents), dtype=bool)
    begins[1:] = parents[1:] != parents[:-1]
    return np.flatnonzero(begins), np.cumsum(begins) - 1
