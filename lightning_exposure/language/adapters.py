"""Choosing the adapter for a module, by looking at its forward and by trying it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from lightning_exposure.errors import ExposureError, ModelError
from lightning_exposure.language.models import StepModel, device_of, evaluating, logits_of
from lightning_exposure.language.recurrent import RecurrentAdapter
from lightning_exposure.language.stateless import StatelessAdapter
from lightning_exposure.language.states import holds_tensors, tensors_of

_STATE_NAMES = {"state", "states", "hidden", "hiddens", "h", "hc", "hx", "h0", "memory", "carry", "cache"}
_BY_HAND = (
    "Choose by hand: SecretTree(RecurrentAdapter(module, state_argument='...', initial_state=...), format, tokenizer) "
    "for a forward that takes and returns a state, SecretTree(StatelessAdapter(module), format, tokenizer) for one "
    "that maps token ids to logits, or a StepModel of your own (lightning_exposure.language). Callbacks take it as "
    "model=lambda module: RecurrentAdapter(module, ...)."
)


def step_model(model: nn.Module | StepModel, *, context: int | None = None) -> StepModel:
    """A model as a `StepModel`.

    A module is recurrent if its forward returns something made of tensors beside the logits, takes it back, and then
    reads a string in two parts as it reads it in one. Any other module is stateless.

    Args:
        model: A module, or a `StepModel`, which is returned as it is.
        context: For a stateless module: how many of the last tokens it is given.

    Raises:
        ModelError: No adapter fits; the message says how to choose by hand.
    """
    if isinstance(model, StepModel):
        return model
    if not isinstance(model, nn.Module):
        raise ModelError(f"model is {type(model).__name__}; expected an nn.Module or a StepModel. {_BY_HAND}")
    if context is not None:  # only a stateless model has a context to limit: the caller has chosen
        return StatelessAdapter(model, context=context)
    with evaluating(model):
        output = _try_forward(model)
        argument = _state_argument(model, output)
    if argument is None:
        return StatelessAdapter(model)
    return RecurrentAdapter(model, state_argument=argument)


def _probe(model: nn.Module, batch: int, time: int) -> torch.Tensor:
    return torch.zeros(batch, time, dtype=torch.long, device=device_of(model))


def _try_forward(model: nn.Module) -> Any:
    """What forward returns for two rows of three tokens."""
    try:
        output = model(_probe(model, 2, 3))
    except Exception as error:
        raise ModelError(
            f"forward of {type(model).__name__} failed on token ids of shape (2, 3) alone: {error!r}. {_BY_HAND}"
        ) from error
    logits_of(output, 2, 3)
    return output


def _state_argument(model: nn.Module, output: Any) -> str | None:
    """The name of forward's argument that takes the state it returns; None if the model has no state."""
    if not (isinstance(output, (tuple, list)) and len(output) > 1 and holds_tensors(output[1])):
        return None
    named = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in _NAMEABLE][1:]
    likely = [name for name in named if name in _STATE_NAMES]
    for name in likely or named[:1]:
        if _reads_in_parts(model, name):
            return name
    if likely:
        raise ModelError(
            f"forward of {type(model).__name__} takes {likely[0]!r} and returns a state, but reading a string in two "
            f"parts with it does not give the logits of reading it in one. {_BY_HAND}"
        )
    return None


_NAMEABLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _reads_in_parts(model: nn.Module, argument: str) -> bool:
    """Whether the state in an argument really carries what was read before."""
    tokens = torch.tensor([[0, 1, 0], [1, 0, 1]], device=device_of(model))
    try:
        adapter = RecurrentAdapter(model, state_argument=argument)
        _, state = adapter.read(tokens[:, :2], None)
        in_parts = adapter.read(tokens[:, 2:], state)
        at_once = adapter.read(tokens, None)
        alone = adapter.read(tokens[:, 2:], None)
    except (ExposureError, RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False
    # The states are compared too: logits of an untrained head may be the same whatever was read before.
    return (
        _close(in_parts[0][:, -1], at_once[0][:, -1])
        and all(map(_close, tensors_of(in_parts[1]), tensors_of(at_once[1])))
        and not all(map(_close, tensors_of(in_parts[1]), tensors_of(alone[1])))
    )


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal but for rounding, in the precision that the model computes in."""
    if one.shape != other.shape:
        return False
    slack = 16.0 * torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
    scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
    return bool((one - other).abs().max() <= max(1e-3, slack) * scale) if one.numel() else True
