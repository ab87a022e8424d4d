"""Choosing the adapter for a module, by looking at its forward and by trying it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import nn

from lightning_exposure.adapters._differences import comparable, difference, typical
from lightning_exposure.adapters._modules_as_found import initial_states, with_forward
from lightning_exposure.adapters.carried_state import RecurrentAdapter
from lightning_exposure.adapters.huggingface.adapter import HuggingFaceAdapter
from lightning_exposure.adapters.huggingface.pretrained import language_models_in, refuse_encoder_decoder
from lightning_exposure.adapters.protocol import (
    StepModel,
    device_of,
    evaluating,
    logits_of,
    other_shape,
    some_logits_of,
)
from lightning_exposure.adapters.stateless import StatelessAdapter
from lightning_exposure.adapters.states import ModelState, holds_tensors, tensors_of
from lightning_exposure.errors import ModelError

_STATE_NAMES = {"state", "states", "hidden", "hiddens", "h", "hc", "hx", "h0", "memory", "carry", "cache"}
_BY_HAND = (
    "Choose by hand: SecretTree(RecurrentAdapter(module, state_argument='...', initial_state=...), format, tokenizer) "
    "for a forward that takes and returns a state, SecretTree(StatelessAdapter(module), format, tokenizer) for one "
    "that maps token ids to logits, or a StepModel of your own (lightning_exposure.language). Callbacks take it as "
    "model=lambda module: RecurrentAdapter(module, ...), or model=lambda module: module.network for a part of it."
)


def step_model(model: nn.Module | StepModel, *, context: int | None = None) -> StepModel:
    """A model as a `StepModel`.

    A module is recurrent if its forward returns something made of tensors beside the logits, takes it back, and then
    reads a string in two parts as it reads it in one. A Hugging Face causal LM is read with `HuggingFaceAdapter`, also
    one that a module holds in an attribute, if the module's own forward gives the same logits, or none at all. Any
    other module is stateless.

    A forward that cannot do without a state gets it from the module's method `init_hidden` (or `init_state`, and the
    like). Whether a recurrent module takes token ids as `(batch, time)` or as `(time, batch)` is found by trying. A
    module without a forward of its own, such as a LightningModule that only trains a network, stands for the one
    network that it holds.

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
    if language_model is None:
        model = with_forward(model)
    if context is not None:  # only a stateless model has a context to limit: the caller has chosen
        return StatelessAdapter(language_model or model, context=context)
    if language_model is not None:
        return HuggingFaceAdapter(language_model)
    with evaluating(model):
        try:
            output = model(_probe(model, 2, 3))
        except Exception as error:
            adapter = _recurrent(model, *initial_states(model))
            if adapter is None:
                raise _failed(model, error) from error
            return adapter
        try:
            _refuse_other_shapes(model, output)
        except ModelError as error:
            raise ModelError(f"{error}{_example(model)}") from error
        return _with_state(model, output) or StatelessAdapter(model)


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


def _failed(model: nn.Module, error: Exception) -> ModelError:
    what = f"forward of {type(model).__name__} failed on token ids of shape (2, 3) alone: {error!r}."
    return ModelError(f"{what} {_BY_HAND}{_example(model)}")


def _example(model: nn.Module) -> str:
    """How to name a part of a module, if it has any that could be a language model."""
    parts = [name for name, part in model.named_children() if any(True for _ in part.children())]
    return f" If one of its parts is the language model: model=lambda module: module.{parts[0]}." if parts else ""


def _refuse_other_shapes(model: nn.Module, output: Any) -> None:
    logits = some_logits_of(output, 2, 3)
    if logits.shape[1:] == (1, 3):  # the logits of a vocabulary of three tokens, or one number for each position?
        longer = some_logits_of(model(_probe(model, 2, 4)), 2, 4)
        if longer.shape[-1] != 3:
            raise other_shape(logits[:, 0], 2, 3)


def _with_state(model: nn.Module, output: Any) -> RecurrentAdapter | None:
    """The adapter for a forward that returns a state and takes it back; None if the model has no state."""
    if not (isinstance(output, (tuple, list)) and len(output) > 1 and holds_tensors(output[1])):
        return None
    adapter = _recurrent(model, None)
    likely = [name for name in _arguments(model) if name in _STATE_NAMES]
    if adapter is None and likely:
        raise ModelError(
            f"forward of {type(model).__name__} takes {likely[0]!r} and returns a state, but reading a string in two "
            f"parts with it does not give the logits of reading it in one{_both_ways(model)}. {_BY_HAND}"
        )
    return adapter


def _recurrent(model: nn.Module, *initial: Callable[[int], ModelState] | None) -> RecurrentAdapter | None:
    """The first way to hand over a state that carries what was read; ids may have to be `(time, batch)` for it."""
    named = _arguments(model)
    likely = [name for name in named if name in _STATE_NAMES]
    for name, first, time_first in product(likely or named[:1], initial, (False, True)):
        try:
            adapter = RecurrentAdapter(model, state_argument=name, initial_state=first, time_first=time_first)
            if _reads_in_parts(adapter):
                return adapter
        except Exception:  # whatever a model of unknown making does when its state is of another kind
            continue
    return None


def _arguments(model: nn.Module) -> list[str]:
    """The names of forward's arguments after the first."""
    return [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in _NAMEABLE][1:]


def _both_ways(model: nn.Module) -> str:
    names = [name for name, part in model.named_modules() if getattr(part, "bidirectional", False) is True]
    return f": {', '.join(names)} reads in both directions, and a language model must be causal" if names else ""


_NAMEABLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _reads_in_parts(adapter: RecurrentAdapter) -> bool:
    """Whether the state really carries what was read before, for each row of a batch by itself."""
    tokens = _mixed_tokens(adapter.module)
    at_once = adapter.read(tokens, adapter.first(2))
    _, state = adapter.read(tokens[:, :2], adapter.first(2))
    in_parts = adapter.read(tokens[:, 2:], state)
    forgetful = adapter.read(tokens[:, 2:], adapter.first(2))
    alone = adapter.read(tokens[1:], adapter.first(1))
    # The states are compared too: logits of an untrained head may be the same whatever was read before. An error must
    # be small beside the difference that it makes what was read: in half precision that may be little.
    error = _distance(in_parts[1], at_once[1])
    return (
        _close(in_parts[0][:, -1], at_once[0][:, -1])
        and _close(alone[0][0, -1], at_once[0][1, -1])
        and error <= 0.25 * _distance(in_parts[1], forgetful[1])
        and error < _distance(in_parts[1], forgetful[1])
    )


def _distance(one: ModelState, other: ModelState) -> float:
    """The largest difference between the tensors of two states; infinite if they are not of the same shape."""
    pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return math.inf
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()), default=0.0)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Logits that are equal but for rounding, in the precision that the model computes in."""
    if one.shape != other.shape:
        return False
    slack = max(1e-3, 16.0 * torch.finfo(one.dtype).eps)
    one, other = comparable(one), comparable(other)
    return bool(difference(one, other).max() <= slack * max(1.0, typical(other)))
