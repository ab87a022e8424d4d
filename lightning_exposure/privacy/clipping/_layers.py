"""For each kind of layer: the per-example gradients of its parameters, from what went in and what came back.

A rule is a function of a layer, its inputs and the gradients of its outputs, both with the examples first. Layers
without a rule of their own are left to Opacus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_exposure._opacus import (
    clean_layer,
    gradients_by_rule,
    gradients_vectorized,
    has_rule,
    prepare_vectorized,
)
from lightning_exposure._torch import convolves_like, padding_of
from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Rows, Whole

Found = Iterator[tuple[Tensor | None, Gradient]]


@dataclass(frozen=True)
class Rule:
    """How the gradients of a kind of layer are found.

    Attributes:
        gradients: Takes the layer, its inputs and the gradients of its outputs.
        how: The same in words.
        names: The parameters it knows of; None: whatever the layer has.
        vectorized: Whether the layer itself is run again, on each example.
    """

    gradients: Callable[[Any, Tensor, Tensor], Found]
    how: str
    names: frozenset[str] | None = frozenset({"weight", "bias"})
    vectorized: bool = False

    def prepare(self, layer: nn.Module) -> None:
        """To be called before anything is hooked to the layer."""
        if self.vectorized:
            prepare_vectorized(layer)

    def clean(self, layer: nn.Module) -> None:
        """Undo what `prepare` did."""
        clean_layer(layer)


def rule_for(layer: nn.Module) -> Rule:
    """The rule of a layer that has parameters of its own and no children.

    Example:
        >>> sorted(rule_for(nn.Linear(2, 3)).names)
        ['bias', 'weight']
    """
    known = {**_RULES, **{base: _TRANSPOSED_LINEAR for base in type(layer).__mro__ if _is_gpt2_linear(base)}}
    for kind, rule in known.items():
        if _works_like(layer, kind) and getattr(layer, "groups", 1) == 1:
            return rule
    # Opacus takes all padding for zeros.
    pads_zeros = getattr(layer, "padding_mode", "zeros") == "zeros"
    if has_rule(type(layer)) and pads_zeros and "forward" not in vars(layer):
        return _SAMPLED
    return _VECTORIZED


def _works_like(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a layer is of a kind, and reads its inputs as that kind does."""
    same = isinstance(layer, kind) and type(layer).forward is kind.forward and "forward" not in vars(layer)
    return same and convolves_like(layer, kind)


def _is_gpt2_linear(kind: type) -> bool:
    # By its name, because transformers need not be installed.
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


# --- rules ----------------------------------------------------------------------------------------------------------


def _linear(layer: nn.Linear, inputs: Tensor, grads: Tensor) -> Found:
    inputs, grads = _steps(inputs), _steps(grads)
    yield layer.weight, Products(grads, inputs)
    yield layer.bias, Whole(grads.sum(1))


def _transposed_linear(layer: Any, inputs: Tensor, grads: Tensor) -> Found:
    """The linear layer of GPT-2, whose weight is `(inputs, outputs)`."""
    inputs, grads = _steps(inputs), _steps(grads)
    yield layer.weight, Products(inputs, grads)
    yield layer.bias, Whole(grads.sum(1))


def _embedding(layer: nn.Embedding, inputs: Tensor, grads: Tensor) -> Found:
    yield layer.weight, rows_of(inputs, grads, layer.num_embeddings, layer.padding_idx)


def _conv1d(layer: nn.Conv1d, inputs: Tensor, grads: Tensor) -> Found:
    """A convolution is a linear layer that reads a window at every step."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(inputs, padding_of(layer), mode=mode)
    (size,), (stride,), (dilation,) = layer.kernel_size, layer.stride, layer.dilation
    windows = padded.unfold(2, (size - 1) * dilation + 1, stride)[..., ::dilation]
    grads = grads.transpose(1, 2)
    yield layer.weight, Products(grads, windows.transpose(1, 2).flatten(2))
    yield layer.bias, Whole(grads.sum(1))


def _layer_norm(layer: nn.LayerNorm, inputs: Tensor, grads: Tensor) -> Found:
    middle = tuple(range(1, inputs.dim() - len(layer.normalized_shape)))
    normal = functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    yield layer.weight, Whole(_summed(normal.mul_(grads), middle))
    yield layer.bias, Whole(_summed(grads, middle))


def _sampled(layer: nn.Module, inputs: Tensor, grads: Tensor) -> Found:
    """By what Opacus has registered for this kind of layer."""
    samples = gradients_by_rule(layer, inputs, grads)
    yield from ((parameter, Whole(sample)) for parameter, sample in samples.items())


def _vectorized(layer: nn.Module, inputs: Tensor, grads: Tensor) -> Found:
    """By running the layer on each example by itself, vectorized."""
    samples = gradients_vectorized(layer, inputs, grads)
    yield from ((parameter, Whole(sample)) for parameter, sample in samples.items())


def _steps(tensor: Tensor) -> Tensor:
    """`(batch, ..., size)` as `(batch, time, size)`."""
    return tensor[:, None] if tensor.dim() == 2 else tensor.flatten(1, -2)


def _summed(tensor: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    # A sum over no dimension at all would be one over all of them.
    return tensor.sum(dimensions) if dimensions else tensor


_PAIRS = "pairs of what it reads and what comes back"
_RULES: Mapping[type[nn.Module], Rule] = MappingProxyType(
    {
        nn.Linear: Rule(_linear, _PAIRS),
        nn.Embedding: Rule(_embedding, "the rows that were looked up"),
        nn.Conv1d: Rule(_conv1d, f"{_PAIRS}, window by window"),
        nn.LayerNorm: Rule(_layer_norm, "the gradients themselves, which are small"),
    }
)
_TRANSPOSED_LINEAR = Rule(_transposed_linear, _PAIRS)
_SAMPLED = Rule(_sampled, "the gradients themselves, by the rule of Opacus", names=None)
_VECTORIZED = Rule(
    _vectorized, "run again on each example; checked against autograd in the first batch", names=None, vectorized=True
)


def rows_of(indices: Tensor, grads: Tensor, rows: int, padding: int | None) -> Rows:
    """The gradients of a table of so many rows that was looked up."""
    indices, grads = indices.flatten(1) if indices.dim() > 1 else indices[:, None], _steps(grads)
    if padding is not None:
        # That row never learns.
        grads = grads * (indices != padding)[:, :, None]
    return Rows(indices, grads, rows)


def raised(tensor: Tensor) -> Tensor:
    """In at least single precision: sums of squares overflow or vanish in half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
