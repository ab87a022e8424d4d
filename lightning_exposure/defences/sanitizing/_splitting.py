"""Dividing samples into parts, and what the models that did or did not see them say."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Losses(NamedTuple):
    """What each sample costs, in bits."""

    held_out: Floats
    """For the model that has not seen its part."""
    seen: Floats
    """For the models that have, on average."""


def split_groups(groups: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """Divide samples at random into parts of nearly equal size, no group into two of them.

    The largest groups are dealt out first, each to the smallest part so far; among groups of a size the order is
    random, so with groups of one sample this is a random split into parts whose sizes differ by at most one.

    Args:
        groups: The number of each sample's group, as `group_copies` gives them.
        folds: How many parts there are.
        seed: Where the randomness comes from.

    Returns:
        The number of each sample's part.

    Example:
        >>> split_groups(np.array([0, 1, 0, 2, 3, 4]), folds=2, seed=0).tolist()
        [0, 1, 0, 1, 0, 1]
    """
    sizes = np.bincount(groups)
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(sizes))
    full = np.zeros(folds, dtype=np.int64)
    part_of_group = np.empty(len(sizes), dtype=np.int64)
    for group in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        part = int(full.argmin())
        part_of_group[group] = part
        full[part] += sizes[group]
    return part_of_group[groups]


def losses_by_part(costs: Floats, parts: NDArray[np.int64]) -> Losses:
    """Sort out which models have seen each sample.

    Args:
        costs: `(folds, samples)`: what each sample costs for the model that was trained on all parts but one.
        parts: The number of each sample's part.

    Example:
        >>> losses_by_part(np.array([[9.0, 2.0], [1.0, 7.0], [3.0, 4.0]]), np.array([0, 1]))
        Losses(held_out=array([9., 7.]), seen=array([2., 3.]))
    """
    held_out = costs[parts, np.arange(len(parts))]
    return Losses(held_out, (costs.sum(axis=0) - held_out) / (len(costs) - 1))


def most_suspicious_first(differences: Floats) -> NDArray[np.intp]:
    """The numbers of the samples, those with the largest difference first; equal ones in their order."""
    return np.argsort(-differences, kind="stable")


def count_of_share(share: float, count: int) -> int:
    """How many samples a share is: rounded up, so that a share above 0 is never nothing.

    >>> count_of_share(0.1, 30), count_of_share(0.1, 31), count_of_share(0.0, 31)
    (3, 4, 0)
    """
    # As a fraction, because 0.1 * 30 is a little more than 3.
    return math.ceil(Fraction(str(float(share))) * count)
