"""Choosing the adapter for a module, by looking at its forward and by trying it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from lightning_exposure.errors import ExposureError, ModelError
from lightning_exposure.language.huggingface import HuggingFaceAdapter
from lightning_exposure.language.models import StepModel, device_of, evaluating, logits_of
from lightning_exposure.language.pretrained import language_models_in, refuse_encoder_decoder
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
    reads a string in two parts as it reads it in one. A Hugging Face causal LM is read with `HuggingFaceAdapter`, also
    one that a module holds in an attribute, if the module's own forward gives the same logits, or none at all. Any
    other module is stateless.

    Args:
        model: A module, or a `StepModel`, which is returned as it is.
        context: How many of the last tokens a module is given, which then is stateless.

    Raises:
        ModelError: No adapter fits; the message says how to choose by hand.
    """
    if isinstance(model, StepModel):
        return model
    if not isinstance(model, nn.Module):
        raise ModelError(f"model is {type(model).__name__}; expected an nn.Module or a StepModel. {_BY_HAND}")
    language_model = _language_model(model)
    if context is not None:  # only a stateless model has a context to limit: the caller has chosen
        return StatelessAdapter(language_model or model, context=context)
    if language_model is not None:
        return HuggingFaceAdapter(language_model)
    with evaluating(model):
        output = _try_forward(model)
        argument = _state_argument(model, output)
    if argument is None:
        return StatelessAdapter(model)
    return RecurrentAdapter(model, state_argument=argument)


def _language_model(model: nn.Module) -> nn.Module | None:
    """The Hugging Face causal LM that a module is or holds; None if there is none, or the module does more than that.

    Raises:
        ModelError: There are several and nothing says which; or it is an encoder-decoder, which needs a source.
    """
    found = language_models_in(model)
    if not found:
        return None
    if "" in found:
        refuse_encoder_decoder(model)
        return model
    own = _own_logits(model)
    if own is None:
        candidates = found
    else:  # what the module's forward gives is what counts: the LM it holds must give the same
        candidates = {name: part for name, part in found.items() if _gives(part, own)}
        if not candidates:
            return None
    if len(candidates) > 1:
        names = ", ".join(f"{name} ({type(part).__name__})" for name, part in candidates.items())
        first = next(iter(candidates))
        raise ModelError(
            f"{type(model).__name__} holds {len(candidates)} language models, {names}, and nothing says which one is "
            f"to be measured. Name it: SecretTree(module.{first}, format, tokenizer), or in a callback "
            f"model=lambda module: module.{first}."
        )
    (chosen,) = candidates.values()
    refuse_encoder_decoder(chosen)
    return chosen


def _own_logits(model: nn.Module) -> torch.Tensor | None:
    """What a module's own forward gives for two rows of tokens; None if it takes or returns something else."""
    tokens = _mixed_tokens(model)
    try:
        with evaluating(model):
            return logits_of(model(tokens), *tokens.shape)
    except Exception:  # a forward for batches, with labels, that logs: it is not asked again
        return None


def _gives(part: nn.Module, logits: torch.Tensor) -> bool:
    """Whether an LM gives these logits."""
    own = _own_logits(part)
    return own is not None and _close(own, logits)


def _mixed_tokens(model: nn.Module) -> torch.Tensor:
    return torch.tensor([[0, 1, 0], [1, 0, 1]], device=device_of(model))


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
    tokens = _mixed_tokens(model)
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
