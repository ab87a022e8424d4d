"""Modules as people have them: a network inside of a module without a forward, a method that makes the first state."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from lightning_exposure.adapters.protocol import device_of, dtype_of
from lightning_exposure.adapters.states import ModelState, holds_tensors, map_tensors
from lightning_exposure.errors import ModelError

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
