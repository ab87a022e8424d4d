"""Listening to `nn.MultiheadAttention`, which keeps the weights of its linear maps and calls no layer for them.

PyTorch's own code runs, with a linear map in it that listens: masks, dropout, biases of keys and values and what else
there is are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from lightning_exposure._torch import as_no_view, attention_with, is_view
from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping._layer_hooks import Listener
from lightning_exposure.privacy.clipping._layers import raised
from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Whole


class AttentionListener(Listener):
    """Listens to the projections of an attention layer: each is a linear map, a few rows of a weight."""

    layer: nn.MultiheadAttention

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""
        for parameter, begin, bias, bias_begin, read, arrived in self._records:
            # Time is first in there, whatever goes into the layer.
            grads = raised(arrived).transpose(0, 1)
            if read is None:
                yield parameter, Whole(grads[:, None])
                continue
            left = _among(grads, begin, parameter.shape[0])
            yield parameter, Products(left, raised(read).transpose(0, 1))
            if bias is not None:
                yield bias, Whole(_among(grads.sum(1), bias_begin, bias.shape[0]))

    def _listened(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        for what, tensor in (("queries", query), ("keys", key), ("values", value)):
            self._check_read(tensor, what)
        layer: Any = self.layer
        if layer.batch_first:
            # Once for each tensor, because PyTorch looks whether they are the same.
            turned = {id(tensor): tensor.transpose(0, 1) for tensor in (query, key, value)}
            query, key, value = (turned[id(tensor)] for tensor in (query, key, value))
        rows = query.shape[1]
        mapped: list[int] = []
        outputs, weights = attention_with(partial(self._linear, rows, mapped))(
            query,
            key,
            value,
            layer.embed_dim,
            layer.num_heads,
            layer.in_proj_weight,
            layer.in_proj_bias,
            self._for_each(layer.bias_k, rows),
            self._for_each(layer.bias_v, rows),
            layer.add_zero_attn,
            layer.dropout,
            layer.out_proj.weight,
            layer.out_proj.bias,
            training=layer.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=layer.in_proj_weight is None,
            q_proj_weight=layer.q_proj_weight,
            k_proj_weight=layer.k_proj_weight,
            v_proj_weight=layer.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        if sum(mapped) != 4 * layer.embed_dim:
            raise ModelError(
                f"{self.who}: this version of PyTorch computes its projections in a way that is not known here, so the "
                "gradients of single examples cannot be found. Freeze it, or use a version that was tested."
            )
        return outputs.transpose(0, 1) if layer.batch_first else outputs, weights

    def _check_read(self, tensor: Tensor, what: str) -> None:
        if tensor.is_nested or tensor.dim() != 3:
            given = "a nested tensor" if tensor.is_nested else f"a tensor {tuple(tensor.shape)}"
            raise ModelError(
                f"{self.who}: was given {given} as its {what}. Give it a padded batch (batch, time, features), and a "
                "key_padding_mask."
            )
        self._check_examples(tensor, what)

    def _linear(self, rows: int, mapped: list[int], read: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear map that records what it reads and which gradients come back."""
        mapped.append(weight.shape[0])
        outputs = functional.linear(read, weight, bias)
        # Before the last map all steps stand in one dimension.
        flat = outputs.dim() == 2
        if flat:
            outputs, read = outputs.view(-1, rows, outputs.shape[1]), read.view(-1, rows, read.shape[1])
        what = (*self._owner(weight), *self._owner(bias))
        outputs = self._tapped(as_no_view(outputs) if is_view(outputs) else outputs, read, what)
        return outputs.flatten(0, 1) if flat else outputs

    def _owner(self, part: Tensor | None) -> tuple[nn.Parameter | None, int]:
        """The parameter that a tensor is some rows of, and the first of them."""
        if part is None:
            return None, 0
        for parameter in self._parameters.values():
            begin = part.data_ptr() - parameter.data_ptr()
            if 0 <= begin < parameter.numel() * parameter.element_size():
                return parameter, begin // (parameter[0].numel() * parameter.element_size())
        raise AssertionError("The attention has a weight that is not its own.")

    def _for_each(self, bias: nn.Parameter | None, rows: int) -> _Repeated | None:
        """A bias that is one more key or value of every example, for each of them its own."""
        if bias is None:
            return None
        return _Repeated(self._tapped(bias.repeat(1, rows, 1), None, (bias, 0, None, 0)))


class _Repeated:
    """What PyTorch wants to repeat for every example, and has been repeated."""

    def __init__(self, repeated: Tensor) -> None:
        self._repeated = repeated

    def repeat(self, *_: int) -> Tensor:
        """As `Tensor.repeat`."""
        return self._repeated


def _among(part: Tensor, begin: int, size: int) -> Tensor:
    """Some of the rows of a weight among all of them: zeros before and after, in the last dimension."""
    return part if part.shape[-1] == size else functional.pad(part, (begin, size - begin - part.shape[-1]))
