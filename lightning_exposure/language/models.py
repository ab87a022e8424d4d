"""How a model reads a string, one token after the other: the `StepModel` protocol and what its adapters share.

No walk ever calls a model. It asks a `SecretTree`, and the tree asks a `StepModel`: read a prompt (`start`), read
one more token in each row of a batch (`step`), pick rows (`select`), put batches together (`concatenate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lightning_exposure.errors import ModelError
from lightning_exposure.language.states import State


@runtime_checkable
class StepModel(Protocol):
    """A next-token model that reads token by token. Write one of these for a model no adapter fits."""

    @property
    def module(self) -> nn.Module:
        """The module that does the work; kept in eval mode while a tree uses it."""
        ...

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, State]:
        """Read a prompt. Returns the logits `(1, vocabulary)` after it and the state of that one row."""
        ...

    def step(self, state: State, tokens: Tensor, /) -> tuple[Tensor, State]:
        """Read one token `(batch,)` in each row. Returns the logits `(batch, vocabulary)` and the new state."""
        ...

    def select(self, state: State, rows: Tensor, /) -> State:
        """The state of some rows; a row may be asked for several times."""
        ...

    def concatenate(self, states: Sequence[State], /) -> State:
        """Several batches of states as one."""
        ...

    def bytes_of(self, state: State, /) -> int:
        """The memory a state takes."""
        ...


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, no autocast; afterwards every submodule's mode is exactly what it was.

    Setting `module.train()` afterwards would be wrong: parts of a model are often in eval mode on purpose.
    """
    modes = [(part, part.training) for part in module.modules()]
    device = device_of(module).type
    try:
        with torch.no_grad(), torch.autocast(device, enabled=False):
            module.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training


def device_of(module: nn.Module) -> torch.device:
    """Where a module's first parameter or buffer lives; the CPU for a module without any."""
    tensor = next(chain(module.parameters(), module.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def dtype_of(module: nn.Module) -> torch.dtype:
    """The type of a module's first floating-point parameter; float32 for a module without any."""
    for tensor in module.parameters():
        if tensor.is_floating_point():
            return tensor.dtype
    return torch.float32


def logits_of(output: Any, batch: int, time: int) -> Tensor:
    """The logits `(batch, time, vocabulary)` in what a module's forward returned.

    Args:
        output: A tensor, a tuple whose first item is the logits, or an object with `.logits`.
        batch: How many rows were given to the module.
        time: How many tokens each row had.

    Raises:
        ModelError: There are none, or their shape is not `(batch, time, vocabulary)`.
    """
    logits = output[0] if isinstance(output, (tuple, list)) and output else getattr(output, "logits", output)
    remedy = (
        "The model must map token ids (batch, time) to logits (batch, time, vocabulary): a tensor, a tuple whose "
        "first item is the logits, or an object with .logits. Wrap it in a module that does, or hand SecretTree a "
        "StepModel of your own."
    )
    if not isinstance(logits, Tensor):
        raise ModelError(f"the model returned {type(output).__name__} without logits. {remedy}")
    if logits.dim() != 3 or logits.shape[:2] != (batch, time):
        raise ModelError(
            f"the model returned logits of shape {tuple(logits.shape)} for token ids of shape {(batch, time)}; "
            f"expected {(batch, time)} + (vocabulary,). {remedy}"
        )
    return logits
