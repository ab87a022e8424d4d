"""Modules as people have them: a network inside of a module without a forward, a method that makes the first state.

And what is said when a forward is none of a language model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure.adapters.protocol import device_of, dtype_of, other_shape, some_logits_of
from lightning_exposure.adapters.states import ModelState, holds_tensors, map_tensors
from lightning_exposure.errors import ModelError

BY_HAND = (
    "Choose by hand: SecretTree(RecurrentAdapter(module, state_argument='...', initial_state=...), format, tokenizer) "
    "for a forward that takes and returns a state, SecretTree(StatelessAdapter(module), format, tokenizer) for one "
    "that maps token ids to logits, or a StepModel of your own (lightning_exposure.adapters). Callbacks take it as "
    "model=lambda module: RecurrentAdapter(module, ...), or model=lambda module: module.network for a part of it."
)
"""What to do if no adapter fits."""

_MAKERS = (
    "init_hidden", "init_state", "init_states", "init_hidden_state", "initial_state", "initial_hidden",
    "get_initial_state", "get_init_state", "zero_state", "begin_state",
)  # fmt: skip
"""What modules call the method that makes the state before the first token, for a batch of some size."""


def with_forward(model: nn.Module) -> nn.Module:
    """The module itself, or, if it has no forward of its own, the one network that it holds.

    Raises:
        ModelError: It has none and holds no network, or several; the message says how to name one.
    """
    if not _lacks_forward(model):
        return model
    networks = {
        name: part
        for name, part in model.named_children()
        if any(True for _ in part.parameters()) and any(True for _ in part.children())
    }
    layers = [name for name, part in model.named_children() if any(True for _ in part.parameters())]
    if len(networks) == 1 and len(layers) == 1:
        return with_forward(next(iter(networks.values())))
    held = f"holds {', '.join(layers)}" if layers else "holds no network"
    example = next(iter(networks), "network")
    raise ModelError(
        f"{type(model).__name__} has no forward of its own, and {held}: nothing says what maps token ids to logits. "
        f"Name the language model, SecretTree(module.{example}, format, tokenizer), or in a callback "
        f"model=lambda module: module.{example}; or write a forward that maps token ids (batch, time) to logits."
    )


def _lacks_forward(model: nn.Module) -> bool:
    """Whether forward is the one that every module inherits, which raises; LightningModule passes it on."""
    if "forward" in vars(model):
        return False
    owner = next(base for base in type(model).__mro__ if "forward" in vars(base))
    return owner is nn.Module or owner.__name__ == "LightningModule"


def initial_states(model: nn.Module) -> list[Callable[[int], ModelState]]:
    """The module's own ways to make the state before the first token, for a batch of some size."""
    found: list[Callable[[int], ModelState]] = []
    for name in _MAKERS:
        maker = getattr(model, name, None)
        if not callable(maker) or isinstance(maker, nn.Module):
            continue
        for arguments in (lambda batch: (batch,), lambda batch: (batch, device_of(model))):
            make = partial(_made, model, maker, arguments)
            try:
                inspect.signature(maker).bind(*arguments(2))
                if holds_tensors(make(2)):
                    found.append(make)
                    break
            except Exception:  # a method of this name that does something else
                continue
    return found


def _made(model: nn.Module, maker: Any, arguments: Callable[[int], tuple[Any, ...]], batch: int) -> ModelState:
    """A state where the module is and in its precision, whatever the method says."""

    def fitted(tensor: Tensor) -> Tensor:
        kind = dtype_of(model) if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(device_of(model), kind)

    made = maker(*arguments(batch))
    return map_tensors(fitted, made) if holds_tensors(made) else made


def probe_tokens(model: nn.Module, batch: int, time: int) -> Tensor:
    """Token ids that any vocabulary has."""
    return torch.zeros(batch, time, dtype=torch.long, device=device_of(model))


def forward_failed(model: nn.Module, error: Exception) -> ModelError:
    """What is raised for a forward that does not take token ids alone."""
    what = f"forward of {type(model).__name__} failed on token ids of shape (2, 3) alone: {error!r}."
    return ModelError(f"{what} {BY_HAND}{_example(model)}")


def refuse_other_shapes(model: nn.Module, output: Any) -> None:
    """Raise if what forward returned for `probe_tokens(model, 2, 3)` has no logits in it.

    Raises:
        ModelError: It has none, or they have another shape.
    """
    try:
        logits = some_logits_of(output, 2, 3)
        if logits.shape[1:] == (1, 3):  # the logits of a vocabulary of three tokens, or one number for each position?
            longer = some_logits_of(model(probe_tokens(model, 2, 4)), 2, 4)
            if longer.shape[-1] != 3:
                raise other_shape(logits[:, 0], 2, 3)
    except ModelError as error:
        raise ModelError(f"{error}{_example(model)}") from error


def _example(model: nn.Module) -> str:
    """How to name a part of a module, if it has any that could be a language model."""
    parts = [name for name, part in model.named_children() if any(True for _ in part.children())]
    return f" If one of its parts is the language model: model=lambda module: module.{parts[0]}." if parts else ""
