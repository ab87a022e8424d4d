"""The textbook way to estimate a small probability: independent walks, importance weights, a mixture of proposals.

Here to compare with. The library itself draws walks without replacement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure import SecretTree
from lightning_exposure.walks import model_walks, score

TEMPERATURES = (1.0, 1.6, 3.0, math.inf)


@dataclass(frozen=True)
class MixtureEstimate:
    """Exposures in bits, in the order of the secrets, and the expansions that they share."""

    bits: NDArray[np.float64]
    expansions: int


def exposure_by_mixture(tree: SecretTree, secrets: Sequence[str], *, samples: int, seed: int) -> MixtureEstimate:
    """Estimate the exposure of secrets from one set of walks, which take the temperatures in turn.

    Each walk stands for `1 / (samples * q)` secrets, q being its probability under the whole mixture (the balance
    heuristic). The secret itself is counted exactly: walks that come to it do not count.
    """
    scored = score(tree, secrets)
    own_paths = tree.paths(secrets)
    walks = model_walks(tree, samples, seed=seed, temperatures=TEMPERATURES)
    stands_for = np.where(walks.complete, np.exp(-walks.log_probabilities) / samples, 0.0)
    ranks = []
    for path, cost in zip(own_paths, scored.costs, strict=True):
        others = ~(walks.paths == path).all(axis=1)
        cheaper = walks.costs <= cost
        ranks.append(1.0 + float(stands_for[others & cheaper].sum()))
    bits = (tree.bits - np.log2(ranks)).clip(0.0, tree.bits)
    return MixtureEstimate(bits, scored.expansions + walks.expansions)
