"""Reading along given paths: of everything that might follow, only the tokens of the paths are priced.

Expanding a node prices all its children. Who only wants to know what given secrets cost needs one logit of each row
and its normalizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_exposure.adapters.protocol import StepModel, device_of
from lightning_exposure.adapters.states import ModelState
from lightning_exposure.tree.prices import edge_bits
from lightning_exposure.tree.prompt import Prompt

Check = Callable[[Tensor, int], Tensor]
"""Looks at logits for so many rows, and hands them on as they are priced."""


@dataclass(frozen=True)
class Reading:
    """What a model says after some nodes.

    Attributes:
        state: The model's state after them, one row per node.
        logits: `(nodes, vocabulary)`.
    """

    state: ModelState
    logits: Tensor

    def bits(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """What these tokens cost after the nodes in these rows."""
        return edge_bits(self.logits, rows, tokens)


class PathReader:
    """Reads what it is told to; the caller sees to it that the module is in eval mode, and gradients are off.

    Args:
        model: What reads.
        prompt: What stands before the first blank.
        check: For logits as they come from the model.
    """

    def __init__(self, model: StepModel, prompt: Prompt, check: Check) -> None:
        self._model = model
        self._prompt = prompt
        self._check = check
        self._device = device_of(model.module)

    def start(self) -> Reading:
        """Read the prompt."""
        logits, state = self._prompt.read()
        return Reading(state, self._check(logits, 1))

    def step(self, state: ModelState, tokens: NDArray[np.int64]) -> Reading:
        """Read one token in each row of a state."""
        logits, after = self._model.step(state, self._tensor(tokens))
        return Reading(after, self._check(logits, len(tokens)))

    def select(self, state: ModelState, rows: NDArray[np.int64]) -> ModelState:
        """The state of some rows."""
        return self._model.select(state, self._tensor(rows))

    def _tensor(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)
