"""Reading along given paths: of everything that might follow, only the tokens of the paths are priced.

Expanding a node prices all its children. Who only wants to know what given secrets cost needs one logit of each row
and its normalizer, and can read what no two secrets have in common in one go, without a stop at every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_exposure.language.models import StepModel, device_of
from lightning_exposure.language.pricing import edge_bits
from lightning_exposure.language.states import State

Check = Callable[[Tensor, int], Tensor]
"""Looks at logits for so many rows, and hands them on as they are priced."""


@dataclass(frozen=True)
class Reading:
    """What a model says after some nodes.

    Attributes:
        state: The model's state after them, one row per node.
        logits: `(nodes, vocabulary)`.
    """

    state: State
    logits: Tensor

    def bits(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """What these tokens cost after the nodes in these rows."""
        return edge_bits(self.logits, rows, tokens)


class PathReader:
    """Reads what it is told to; the caller sees to it that the module is in eval mode, and gradients are off.

    Args:
        model: What reads.
        root: The tokens before the first blank.
        check: For logits as they come from the model.
    """

    def __init__(self, model: StepModel, root: Sequence[int], check: Check) -> None:
        self._model = model
        self._root = root
        self._check = check

    def start(self) -> Reading:
        """Read the prompt."""
        logits, state = self._model.start(self._root)
        return Reading(state, self._check(logits, 1))

    def step(self, state: State, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> Reading:
        """Read one token after each of these rows of a state."""
        logits, after = self._model.step(self._select(state, rows), self._tensor(tokens))
        return Reading(after, self._check(logits, len(tokens)))

    def rest(self, state: State, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Read several tokens after each of these rows of a state.

        Args:
            state: Where they begin.
            rows: In which row of it each of them does.
            tokens: `(rows, time)`; at least two. The last is priced and not read, the first is read and not priced.

        Returns:
            What each token but the first costs `(rows, time - 1)`.
        """
        read, priced = self._tensor(tokens[:, :-1]), tokens[:, 1:]
        logits = read_on(self._model, self._select(state, rows), read).flatten(0, 1)
        bits = edge_bits(self._check(logits, priced.size), np.arange(priced.size), priced.ravel())
        return bits.reshape(priced.shape)

    def _select(self, state: State, rows: NDArray[np.int64]) -> State:
        return self._model.select(state, self._tensor(rows))

    def _tensor(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(device_of(self._model.module))


def read_on(model: StepModel, state: State, tokens: Tensor) -> Tensor:
    """The logits after each of several tokens `(rows, time)`, as `(rows, time, vocabulary)`.

    A `StepModel` that can read them all at once says so with a method `read_on(state, tokens)`, which may return None
    where it cannot; otherwise they are read one after the other.
    """
    at_once = getattr(model, "read_on", None)
    if at_once is not None and tokens.shape[1] > 1:
        logits = at_once(state, tokens)
        if logits is not None:
            return logits
    return step_by_step(model, state, tokens)


def step_by_step(model: StepModel, state: State, tokens: Tensor) -> Tensor:
    """The logits after each of several tokens, read one after the other."""
    after = []
    for token in tokens.unbind(dim=1):
        logits, state = model.step(state, token)
        after.append(logits)
    return torch.stack(after, dim=1)
