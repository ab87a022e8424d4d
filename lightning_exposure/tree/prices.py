"""What the tokens that may follow cost: from a model's logits to the children of a batch of nodes."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_exposure.errors import ModelError
from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton

Priced = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""For each child: the row of its parent, its token, its place, and the bits from the root to it."""

IMPOSSIBLE_BITS = 10_000.0
"""A token that costs more than this many bits counts as impossible, in every walk alike: its cost is infinite.

Models mask tokens out with logits of minus infinity, -1e9, the smallest number of their type, or -1e4 in half
precision; no model that is not masking gives a token less than 2^-10000.
"""

COST_STEP = 2.0**-36
"""Costs of tokens are whole multiples of this many bits.

Sums of such numbers are exact in float64 up to 65,536 bits, in whatever order: two secrets whose tokens cost the same
cost the same, to the last digit. The step is far below the rounding of any model in single precision.
"""

_LN2 = math.log(2.0)
_FEW_PLACES = 8
"""Up to so many places, the nodes at each of them are priced together, as a block of logits."""


def price_children(
    automaton: TokenAutomaton,
    logits: Tensor,
    places: NDArray[np.int64],
    costs: NDArray[np.float64],
    bound: float,
) -> Priced:
    """All children of some nodes that cost at most so many bits, in the order of their parents and then of tokens.

    Args:
        automaton: Which tokens may follow.
        logits: What the model says after each node `(nodes, vocabulary)`.
        places: Where each node stands.
        costs: The bits from the root to each node.
        bound: Children that cost more are left out.

    Raises:
        ModelError: The logits are not finite.
    """
    normalizer = _log_sum(logits)
    _refuse_nan(normalizer)
    distinct, place_of = np.unique(places, return_inverse=True)
    if len(distinct) > _FEW_PLACES:
        return _one_by_one(automaton, logits, normalizer, distinct, place_of, costs, bound)
    kept = [
        _at_one_place(automaton, place, np.flatnonzero(place_of == i), logits, normalizer, costs, bound)
        for i, place in enumerate(distinct.tolist())
    ]
    if len(kept) == 1:
        return kept[0]
    parents, tokens, targets, total = (np.concatenate(column) for column in zip(*kept, strict=True))
    order = np.argsort(parents, kind="stable")
    return parents[order], tokens[order], targets[order], total[order]


def edge_bits(logits: Tensor, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """What single tokens cost: `tokens[i]` after the node of `rows[i]`.

    Args:
        logits: What the model says after each node `(nodes, vocabulary)`.
        rows: Of the node before each token.
        tokens: The tokens.

    Raises:
        ModelError: The logits are not finite.
    """
    normalizer = _log_sum(logits)
    _refuse_nan(normalizer)
    at, wanted = torch.from_numpy(rows).to(logits.device), torch.from_numpy(tokens).to(logits.device)
    return _bits(normalizer[at] - logits[at, wanted].double())


def _at_one_place(
    automaton: TokenAutomaton,
    place: int,
    rows: NDArray[np.intp],
    logits: Tensor,
    normalizer: Tensor,
    costs: NDArray[np.float64],
    bound: float,
) -> Priced:
    """The children of the nodes that stand at one place, to which the same tokens fit."""
    tokens, targets = automaton.children(place)
    wanted = torch.from_numpy(tokens).to(logits.device)
    if len(rows) == len(logits):
        edge_nats = normalizer[:, None] - logits.index_select(1, wanted).double()
    else:
        at = torch.from_numpy(rows).to(logits.device)
        edge_nats = normalizer[at, None] - logits[at[:, None], wanted].double()
    total = costs[rows, None] + _bits(edge_nats)
    within = total <= bound
    if within.all():
        return np.repeat(rows, len(tokens)), np.tile(tokens, len(rows)), np.tile(targets, len(rows)), total.ravel()
    row, column = np.nonzero(within)
    return rows[row], tokens[column], targets[column], total[row, column]


def _one_by_one(
    automaton: TokenAutomaton,
    logits: Tensor,
    normalizer: Tensor,
    distinct: NDArray[np.int64],
    place_of: NDArray[np.intp],
    costs: NDArray[np.float64],
    bound: float,
) -> Priced:
    """The children of nodes at many places: every logit is looked up by itself."""
    found = [automaton.children(place) for place in distinct.tolist()]
    counts = np.array([len(tokens) for tokens, _ in found], dtype=np.int64)
    first = np.cumsum(counts) - counts
    tokens, targets = (np.concatenate(column) for column in zip(*found, strict=True))
    of_node = counts[place_of]
    parents = np.repeat(np.arange(len(place_of)), of_node)
    edge = np.arange(len(parents)) + np.repeat(first[place_of] - (np.cumsum(of_node) - of_node), of_node)
    rows, columns = torch.from_numpy(parents).to(logits.device), torch.from_numpy(tokens[edge]).to(logits.device)
    total = costs[parents] + _bits(normalizer[rows] - logits[rows, columns].double())
    if bound == math.inf:
        return parents, tokens[edge], targets[edge], total
    kept = np.flatnonzero(total <= bound)
    edge = edge[kept]
    return parents[kept], tokens[edge], targets[edge], total[kept]


def _bits(nats: Tensor) -> NDArray[np.float64]:
    """Costs in bits. Rounding may put a probability just above 1; a negative cost would break every bound below it."""
    bits: NDArray[np.float64] = np.maximum(nats.cpu().numpy(), 0.0) / _LN2
    masked = bits > IMPOSSIBLE_BITS
    bits /= COST_STEP
    np.rint(bits, out=bits)
    bits *= COST_STEP
    bits[masked] = math.inf
    return bits


def _log_sum(logits: Tensor) -> Tensor:
    """`logsumexp` of each row: exponentials in the model's own precision, their sum in float64."""
    largest = logits.amax(dim=1)
    return largest.double() + (logits - largest[:, None]).exp_().sum(dim=1, dtype=torch.float64).log()


def _refuse_nan(normalizer: Tensor) -> None:
    broken = ~torch.isfinite(normalizer)
    if bool(broken.any()):
        raise ModelError(
            f"the model returned NaN or infinite logits in {int(broken.sum())} of {len(normalizer)} rows; a "
            "log-perplexity needs finite ones. Look at the training (a loss that became NaN?) before measuring."
        )
