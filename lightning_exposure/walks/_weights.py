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
from lightning_exposure.walks._families import families
from lightning_exposure.walks._weighed_tree import WeighedChildren, renormalised
from lightning_exposure.walks.batches import DEFAULT_MEMORY, POSSIBLE
from lightning_exposure.walks.score import follow

Floats = NDArray[np.float64]

TEMPERATURES = (0.25, 0.5, 1.0, 2.0, math.inf)
"""Weights are the mean of the model's distributions at these temperatures; infinity is uniform over the children."""

PRIOR_SHARE = 0.5
"""The part of a weight that is the prior's, where there is one: no secret weighs less than this part of its prior."""

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
        share: The part of a weight that is not the prior's.
    """

    masses: Floats
    shortest: int
    halvings: int
    share: float = 1.0

    def log_weight(self, cost: float) -> float:
        """The natural logarithm of a lower limit of the weight of the secrets that cost at most so many bits.

        At inverse temperature b a path of that cost has a probability of at least `2 ** (-b * cost)` over the product
        of the masses that it shares with its siblings; the mixture has at least its part of the best of them.
        """
        # Longer secrets than the shortest may skip the levels behind it: a mass below 1 must not help them there.
        masses = self.masses[np.isfinite(self.masses).all(axis=1)]  # at the last level nothing may have been left
        masses[self.shortest :] = np.maximum(masses[self.shortest :], 0.0)
        by_temperature = -_INVERSE * cost * _LN2 - masses.sum(axis=0)
        return float(by_temperature.max()) - self.halvings * _LN2 - math.log(len(TEMPERATURES)) + math.log(self.share)


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
    components: Floats | None = None
    for step in follow(tree, paths, bound=min(bound, POSSIBLE), memory=memory):
        children = step.children
        choices = log_choices(children)
        if components is None:
            components = np.zeros((len(paths), choices.shape[1]))
        components[step.rows] += at_forks(children, choices, step.child, step.is_last(paths))
    assert components is not None, "no secrets were given"
    return mixed(components)


def mixed(components: Floats) -> Floats:
    """The log weight of the mixture of temperatures, and of the prior, if there is one."""
    if components.shape[1] == len(TEMPERATURES):
        result: Floats = logsumexp(components, axis=1) - math.log(len(TEMPERATURES))
        return result
    parts = np.full(components.shape[1], (1.0 - PRIOR_SHARE) / len(TEMPERATURES))
    parts[-1] = PRIOR_SHARE
    both: Floats = logsumexp(components + np.log(parts), axis=1)
    return both


def tempered(children: Children) -> Floats:
    """The log probability of each child's token, divided by each temperature `(children, temperatures)`."""
    result: Floats = -children.edges[:, None] * _LN2 * _INVERSE
    return result


def log_choices(children: Children) -> Floats:
    """The log probability of each child among its siblings at each temperature `(children, temperatures)`.

    Of a weighed tree, the last column is that of the prior among those siblings that are within the bound. See
    `at_forks` for children at which secrets end and go on.
    """
    nats = tempered(children)
    first, of = families(children.parents)
    if not len(first):
        return nats if not isinstance(children, WeighedChildren) else np.zeros((0, len(TEMPERATURES) + 1))
    largest = np.maximum.reduceat(nats, first)[of]
    total = np.log(np.add.reduceat(np.exp(nats - largest), first))[of] + largest
    # A child that is complete and goes on competes twice, as itself and as what is below it: half the weight each.
    result: Floats = nats - total - _LN2 * (children.leaf & children.open)[:, None]
    if not isinstance(children, WeighedChildren):
        return result
    return np.column_stack([result, _LN2 * renormalised(children.share, children.parents)])


def at_forks(children: Children, choices: Floats, which: NDArray[np.intp], ends: NDArray[np.bool_]) -> Floats:
    """What `log_choices` gave for some children, where the prior knows whether a secret ends or goes on there.

    Args:
        children: All children.
        choices: What `log_choices` gave for them.
        which: The children in question; one at which secrets end and go on may stand there twice.
        ends: Whether each stands for the secret that ends there.
    """
    chosen = choices[which]
    if isinstance(children, WeighedChildren):
        fork = np.where(ends, children.ending[which], children.onward[which])
        chosen[:, -1] += _LN2 * fork
    return chosen
