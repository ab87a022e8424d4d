"""Which part of a model mixes the examples of a batch?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_exposure.privacy.clipping.recurrent_layers import KINDS
from lightning_exposure.privacy.steps.proof.reruns.examples import Examples
from lightning_exposure.privacy.steps.proof.reruns.rows import tensors_of

Call = tuple[str, list[Tensor], list[Tensor]]


def who_mixes(module: nn.Module, examples: Examples, first: Any, second: Any, count: int, place: int = 0) -> str | None:
    """The first part that makes something else of an example because of the others.

    Args:
        module: What is trained.
        examples: Runs training steps.
        first: A batch.
        second: The same with other examples in other places.
        count: How many examples each has.
        place: Where the example is in both.

    Returns:
        What to call it; None if nothing differs before the loss.
    """
    calls = [_calls(module, examples, batch, count, place) for batch in (first, second)]
    if len(calls[0]) != len(calls[1]):
        return "the module: with other examples it calls other layers"
    differing = None
    for (name, inputs, outputs), (_, other_inputs, other_outputs) in zip(*calls, strict=True):
        same_inputs = _alike(inputs, other_inputs)
        if same_inputs and not _alike(outputs, other_outputs):
            return f"{name!r} ({type(module.get_submodule(name)).__name__})"
        if not same_inputs and differing is None:
            differing = name
    return None if differing is None else f"the training step, before {differing!r} is called"


def shown_others(module: nn.Module, parameters: list[str]) -> str | None:
    """The layers that some parameters belong to, if these can be shown other examples than the rest of a model is.

    What goes into a table, or as a packed sequence into a recurrent layer, need not say whose it is.

    >>> shown_others(nn.Sequential(nn.Embedding(2, 2), nn.LSTM(2, 2)), ["0.weight", "1.bias_ih_l0", "1.bias_hh_l0"])
    "'0' (Embedding), '1' (LSTM)"
    >>> shown_others(nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2)), ["0.weight"])
    """
    layers = {
        name: module.get_submodule(name) for name in dict.fromkeys(name.rpartition(".")[0] for name in parameters)
    }
    if not all(isinstance(layer, (nn.Embedding, *KINDS)) for layer in layers.values()):
        return None
    return ", ".join(f"{name!r} ({type(layer).__name__})" for name, layer in layers.items())


def _calls(module: nn.Module, examples: Examples, batch: Any, count: int, place: int) -> list[Call]:
    """What went into each part and what came out, of one example, in the order in which they were done."""
    found: list[Call] = []

    def note(name: str) -> Any:
        def hook(part: nn.Module, inputs: Any, options: Any, outputs: Any) -> None:
            found.append((name, _row((inputs, options), count, place), _row(outputs, count, place)))

        return hook

    handles = [
        part.register_forward_hook(note(name), with_kwargs=True) for name, part in module.named_modules() if name
    ]
    try:
        examples.inside(batch, count)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _row(values: Any, count: int, place: int) -> list[Tensor]:
    tensors = [value for value in tensors_of(values) if isinstance(value, Tensor)]
    return [value[place].detach().double() for value in tensors if value.dim() and value.shape[0] == count]


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        first.shape == second.shape and torch.allclose(first, second, rtol=1e-3, atol=1e-5, equal_nan=True)
        for first, second in zip(one, other, strict=True)
    )
