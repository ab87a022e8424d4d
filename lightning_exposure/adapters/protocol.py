"""How a model reads a string, one token after the other: the `StepModel` protocol and what its adapters share.

No walk ever calls a model. It asks a `SecretTree`, and the tree asks a `StepModel`: read a prompt (`start`), read
one more token in each row of a batch (`step`), pick rows (`select`), put batches together (`concatenate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lightning_exposure.adapters.states import ModelState
from lightning_exposure.errors import ModelError


@runtime_checkable
class StepModel(Protocol):
    """A next-token model that reads token by token. Write one of these for a model no adapter fits."""

    @property
    def module(self) -> nn.Module:
        """The module that does the work; kept in eval mode while a tree uses it."""
        ...

    def start(self, tokens: Sequence[int], /) -> tuple[Tensor, ModelState]:
        """Read a prompt. Returns the logits `(1, vocabulary)` after it and the state of that one row."""
        ...

    def step(self, state: ModelState, tokens: Tensor, /) -> tuple[Tensor, ModelState]:
        """Read one token `(batch,)` in each row. Returns the logits `(batch, vocabulary)` and the new state."""
        ...

    def select(self, state: ModelState, rows: Tensor, /) -> ModelState:
        """The state of some rows; a row may be asked for several times."""
        ...

    def concatenate(self, states: Sequence[ModelState], /) -> ModelState:
        """Several batches of states as one."""
        ...

    def bytes_of(self, state: ModelState, /) -> int:
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
        output: A tensor, also one flattened to `(batch * time, vocabulary)`; a tuple with the logits in it, such as
            `(logits, state)` or `(loss, logits)`; a dict or an object with `logits`.
        batch: How many rows were given to the module.
        time: How many tokens each row had.

    Raises:
        ModelError: There are none, or their shape is not `(batch, time, vocabulary)`.
    """
    logits = some_logits_of(output, batch, time)
    if logits.shape[1] != time:
        raise other_shape(logits, batch, time)
    return logits


def some_logits_of(output: Any, batch: int, time: int) -> Tensor:
    """The same; logits of the last position alone, `(batch, 1, vocabulary)` or `(batch, vocabulary)`, will do."""
    found = list(_tensors(output))
    if not found:
        raise ModelError(f"the model returned {_contents(output)} without logits. {_EXPECTED}")
    for tensor in found:
        logits = _in_shape(tensor, batch, time)
        if logits is not None:
            return logits
        if tensor.dim() > 1 and tensor.shape != (batch, time):  # no loss: what stands behind it may be a state
            break
    raise other_shape(found[0], batch, time)


def logits_in_layout(output: Any, batch: int, time: int, *, time_first: bool) -> Tensor:
    """The logits `(batch, time or 1, vocabulary)`, also of a module that was given token ids `(time, batch)`."""
    if not time_first:
        return some_logits_of(output, batch, time)
    return logits_of(output, time, batch).transpose(0, 1)


_EXPECTED = (
    "The model must map token ids (batch, time) to logits (batch, time, vocabulary), or those of the last position: a "
    "tensor, a tuple such as (logits, state) or (loss, logits), a dict or an object with logits. Wrap it in a module "
    "that does, or hand SecretTree a StepModel of your own; in a callback: model=lambda module: module.network."
)


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in an output that may be the logits, the most likely first."""
    if isinstance(output, Tensor):
        if output.dim() > 0:  # a loss has no dimensions
            yield output
    elif isinstance(output, Mapping):
        yield from _tensors(output.get("logits"))
    elif isinstance(getattr(output, "logits", None), Tensor):
        yield output.logits
    elif isinstance(output, (tuple, list)):
        for item in output:
            if isinstance(item, (Tensor, Mapping)) or hasattr(item, "logits"):  # not what is inside a state
                yield from _tensors(item)


def _in_shape(tensor: Tensor, batch: int, time: int) -> Tensor | None:
    """A tensor as logits `(batch, time or 1, vocabulary)`; None if its shape is another."""
    if not tensor.is_floating_point():
        return None
    if tensor.dim() == 3 and tensor.shape[0] == batch and tensor.shape[1] in (time, 1):
        return tensor
    if tensor.dim() == 2 and len(tensor) == batch * time:
        return tensor.reshape(batch, time, -1)
    if tensor.dim() == 2 and len(tensor) == batch:
        return tensor[:, None]
    return None


def other_shape(tensor: Tensor, batch: int, time: int) -> ModelError:
    """What is raised for logits of another shape."""
    return ModelError(
        f"the model returned logits of shape {tuple(tensor.shape)} for token ids of shape {(batch, time)}; "
        f"expected {(batch, time)} + (vocabulary,). {_EXPECTED}"
    )


def _contents(output: Any) -> str:
    """What an output is, for people."""
    if isinstance(output, Mapping):
        return f"{type(output).__name__} with {', '.join(map(repr, output)) or 'nothing in it'}"
    return type(output).__name__
