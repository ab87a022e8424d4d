"""How well costs can be told apart: measured, by reading the same secrets in batches of different shapes.

The same string costs slightly different amounts when it is read in a batch of another shape, because matrix products
add their terms up in another order. How much depends on the model, its precision and the size of its logits, so it is
not assumed but tried. Two secrets whose costs differ by less than that are a tie that nobody can decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lightning_exposure.adapters.protocol import device_of, evaluating
from lightning_exposure.tokenization.paths import stack_rows
from lightning_exposure.tree.prices import COST_STEP, IMPOSSIBLE_BITS
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks.batches import DEFAULT_MEMORY, rows_within

Floats = NDArray[np.float64]

_SECRETS = 8
"""How many secrets are read again."""

_ROWS = 24
"""The size of the largest batch: more rows are rarely computed in yet another way."""

_TOKENS = 2**14
"""How many tokens a model that reads all of a text again at every step is given at once at most."""

_LIKELY = 64.0
"""Tokens beyond so many bits are left out of the comparison: nothing rests on their last digits."""

_LN2 = math.log(2.0)


@dataclass(frozen=True)
class Rounding:
    """Which costs can be told apart.

    Attributes:
        bits: Costs that differ by no more than this are a tie that rounding leaves undecided.
        repeatable: Whether the model gave the same numbers in every shape of batch. Costs that are equal to the last
            digit then are equal, and count as ties are defined: against the secret.
        expansions: How many nodes the model read to find out.

    Example:
        >>> rounding = Rounding(bits=0.01, repeatable=False)
        >>> costs = np.array([4.98, 4.999, 5.0, 5.001, 5.02])
        >>> (costs < rounding.surely_below(5.0)).tolist()
        [True, False, False, False, False]
        >>> (costs <= rounding.at_most(5.0)).tolist()
        [True, True, True, True, False]
    """

    bits: float
    repeatable: bool
    expansions: int = 0

    def surely_below(self, costs: ArrayLike) -> Floats:
        """What costs less than this is cheaper for certain."""
        return np.asarray(costs, dtype=np.float64) - self.bits

    def at_most(self, costs: ArrayLike) -> Floats:
        """What costs no more than this may be as cheap."""
        return np.asarray(costs, dtype=np.float64) + self.bits

    def surely_as_cheap(self, others: Floats, cost: float) -> NDArray[np.bool_]:
        """Which of the others count for certain: cheaper, or equal where equal can be told."""
        surely: NDArray[np.bool_] = others < cost - self.bits
        return surely | (others == cost) if self.repeatable else surely

    def perhaps_as_cheap(self, others: Floats, cost: float) -> NDArray[np.bool_]:
        """Which of the others count if the secret loses all ties."""
        perhaps: NDArray[np.bool_] = others <= cost + self.bits
        return perhaps


def measure_rounding(tree: SecretTree, paths: NDArray[np.int32], *, memory: int = DEFAULT_MEMORY) -> Rounding:
    """Read some secrets alone, together and among copies, and one of them in a single pass; and compare.

    The differences that show are enlarged, because only a few secrets are tried: four times the largest difference
    between two costs, three times that of a single token, twice that of a single pass, and two units in the last
    place of the largest logit, whichever is most.

    Args:
        tree: The model and the format.
        paths: Secrets that are to be measured, one row each; others of the format are added to them.
        memory: The limit for model states, in bytes.
    """
    largest = min(_ROWS, rows_within(tree, memory, blocks=3))
    if getattr(tree.model, "rereads", False) is True:  # every row is a pass over the whole text
        largest = min(largest, max(2, _TOKENS // (len(tree.spelling.root) + tree.automaton.depth)))
    rows = _some_paths(tree, paths)[: max(1, largest // 2)]
    together = _read(tree, rows)
    copies = largest // len(rows)
    shapes = [_read(tree, rows[:1]), _read(tree, np.tile(rows, (max(2, copies), 1)))]
    of_cost = max(_largest(shape.costs, together.costs) for shape in shapes)
    of_token = max(_largest(*level) for shape in shapes for level in zip(shape.tokens, together.tokens, strict=True))
    at_once = _largest(_single_pass(tree, rows[0]), together.tokens[int((rows[0] >= 0).sum()) - 1])
    noise = max(4.0 * of_cost, 3.0 * of_token, 2.0 * at_once)
    # Costs are rounded to whole steps; beyond 65,536 bits their sums are rounded, too.
    longest = float(together.costs[np.isfinite(together.costs)].max(initial=0.0))
    summing = rows.shape[1] * max(COST_STEP, float(np.spacing(longest)))
    expansions = together.expansions + sum(shape.expansions for shape in shapes) + 1
    return Rounding(max(noise, 2.0 * together.last_place) + summing, noise == 0.0, expansions)


@dataclass(frozen=True)
class _Reading:
    """What a model says along some paths, in bits.

    Attributes:
        tokens: For each level, the costs of all tokens after each path `(paths, vocabulary)`.
        costs: Of the paths.
        last_place: A unit in the last place of the largest logit that matters.
        expansions: How many rows were read.
    """

    tokens: list[Floats]
    costs: Floats
    last_place: float
    expansions: int


def _some_paths(tree: SecretTree, paths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Half of them given, the rest drawn from the format with a seed of its own."""
    if tree.size != tree.format.size:  # only what begins with a known text is in the tree
        return paths[:_SECRETS]
    given = paths[: _SECRETS // 2]
    return stack_rows([given, tree.paths(tree.format.sample(min(_SECRETS - len(given), tree.size), 0))])


def _read(tree: SecretTree, rows: NDArray[np.int32]) -> _Reading:
    """Read along paths without sharing anything: one row of the batch for each."""
    model = tree.model
    device = device_of(model.module)
    costs, levels, last_place = np.zeros(len(rows)), [], 0.0
    with evaluating(model.module):
        logits, state = model.start(tree.spelling.root)
        everyone = torch.zeros(len(rows), dtype=torch.long, device=device)
        logits, state = logits[everyone.to(logits.device)], model.select(state, everyone)
        for level in range(rows.shape[1]):
            if level:
                tokens = torch.from_numpy(np.maximum(rows[:, level - 1], 0).astype(np.int64)).to(device)
                logits, state = model.step(state, tokens)
            here = rows[:, level] >= 0
            bits, unit = _priced(logits)
            levels.append(np.where(here[:, None], bits, math.inf))
            costs += np.where(here, bits[np.arange(len(rows)), np.maximum(rows[:, level], 0)], 0.0)
            last_place = max(last_place, unit)
    return _Reading(levels, costs, last_place, len(rows) * rows.shape[1])


def _single_pass(tree: SecretTree, path: NDArray[np.int32]) -> Floats:
    """What all tokens cost in place of the last one of a secret, when everything before it is read in one pass."""
    tokens = path[path >= 0]
    with evaluating(tree.model.module):
        logits, _ = tree.model.start([*tree.spelling.root, *tokens[:-1].tolist()])
    return _priced(logits)[0]


def _priced(logits: Tensor) -> tuple[Floats, float]:
    """What every token costs, and a unit in the last place of the largest logit; tokens that matter to no one: inf."""
    eps = torch.finfo(logits.dtype).eps
    values = logits.detach().cpu().double()
    bits: Floats = (values.logsumexp(dim=1, keepdim=True) - values).numpy() / _LN2
    largest = float(np.abs(values.numpy()[bits <= _LIKELY]).max(initial=0.0))
    bits[bits > IMPOSSIBLE_BITS] = math.inf
    return bits, eps * 2.0 ** math.floor(math.log2(largest)) / _LN2 if largest > 0.0 else 0.0


def _largest(one: Floats, other: Floats) -> float:
    """The largest difference between what should be equal; the rows of `other` are repeated as often as needed."""
    other = np.resize(other, one.shape)
    both = np.isfinite(one) & np.isfinite(other)
    if one.ndim == 2:  # single tokens
        both &= np.minimum(one, other) <= _LIKELY
    return float(np.abs(one[both] - other[both]).max(initial=0.0))
