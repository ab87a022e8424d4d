"""Listening to tables: also to those that all examples look up at once, and to those with a forward of their own.

Position ids are often `(1, time)`, and what they find is broadcast to all examples. Then nobody could tell whose the
gradients are that come back. So the ids are expanded to the batch before they are looked up, which changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping._layer_hooks import Batch, Listener
from lightning_exposure.privacy.clipping._layers import raised, rows_of
from lightning_exposure.privacy.clipping.gradients import Gradient
from lightning_exposure.privacy.clipping.support import own_parameters


def is_table(layer: nn.Module) -> bool:
    """Whether a layer is an embedding with nothing to learn but its table.

    >>> is_table(nn.Embedding(3, 2)), is_table(nn.Linear(3, 2))
    (True, False)
    """
    # Who has replaced its forward may do anything with the table, where nobody sees it.
    return (
        isinstance(layer, nn.Embedding) and "forward" not in vars(layer) and own_parameters(layer).keys() == {"weight"}
    )


class EmbeddingListener(Listener):
    """Listens to the lookups in a table, wherever in the layer's forward they are."""

    layer: nn.Embedding

    def __init__(self, name: str, layer: nn.Module, batch: Batch, dimension: int = 0) -> None:
        super().__init__(name, layer, batch, dimension)
        self._spreads = False

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the table, in parts that add up."""
        for padding, expanded, read, arrived in self._records:
            if expanded and not self._spreads:
                self._check_spread(arrived)
            yield self.layer.weight, rows_of(read, raised(arrived), self.layer.num_embeddings, padding)

    def _listened(self, *inputs: Any, **options: Any) -> Any:
        layer = self.layer
        if type(layer).forward is nn.Embedding.forward:
            (indices,) = (*inputs, *options.values())
            return self._lookup(indices, layer.weight, layer.padding_idx)
        with _Lookups(layer.weight, self._lookup, partial(_refuse_use, self.who)):
            return self._native(*inputs, **options)

    def _lookup(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        """As `functional.embedding`, for each example its own."""
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise ModelError(f"{self.who}: looks up with max_norm, scale_grad_by_freq or sparse; leave it out.")
        examples = self._batch.examples or 0
        expanded = examples > 1 and input.dim() > 1 and input.shape[0] == 1
        indices = input.expand(examples, *input.shape[1:]) if expanded else input
        self._check_examples(indices, "inputs")
        padding = None if padding_idx is None else padding_idx % weight.shape[0]
        outputs = functional.embedding(indices, weight, padding)
        return self._tapped(outputs, indices, (padding, expanded))

    def _check_spread(self, arrived: Tensor) -> None:
        """Refuse what was looked up for all examples, and of which one was taken for all of them."""
        reached = int((arrived.flatten(1) != 0).any(1).sum())
        self._spreads = reached > 1
        if reached == 1:
            raise ModelError(
                f"{self.who}: indices of shape (1, ...) were looked up once for each of the {len(arrived)} examples of "
                "the batch, and gradients came back for one of them alone, as if the model had taken that one for all "
                "of them. Broadcast what is found (x + positions, not x + positions[0])."
            )

    def _remedy(self, tensor: Tensor) -> str:
        return (
            "Look up indices of shape (batch, time), or (1, time) if all examples have the same, as position ids do. "
            "What is looked up for pairs of steps, as a bias of attention is, belongs to no example: freeze that table."
        )


class _Lookups(TorchFunctionMode):
    """Within it, a table is looked up by another function, and not used in any other way.

    Args:
        table: Which one.
        lookup: Called in the place of `functional.embedding`, where it is asked for this table.
        refuse: Called with the name of another function that reads the table.
    """

    def __init__(self, table: Tensor, lookup: Callable[..., Tensor], refuse: Callable[[str], None]) -> None:
        super().__init__()
        self._table, self._lookup, self._refuse = table, lookup, refuse

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch for whatever is done with tensors."""
        options = kwargs or {}
        if func is functional.embedding and options.get("weight", args[1] if len(args) > 1 else None) is self._table:
            return self._lookup(*args, **options)
        found = func(*args, **options)
        if (
            not isinstance(found, _HARMLESS)
            and _mentions((args, options), self._table)
            and not self._asks_kind(func, args)
        ):
            self._refuse(getattr(func, "__name__", str(func)))
        return found

    def _asks_kind(self, func: Any, args: Any) -> bool:
        """Whether another tensor is only made to be of the table's kind."""
        return func in (Tensor.to, Tensor.type_as) and args[0] is not self._table


_HARMLESS = (bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout, type(None))
"""What says nothing about the numbers in a table, such as its type and its shape."""


def _mentions(value: Any, table: Tensor) -> bool:
    if isinstance(value, dict):
        return _mentions(list(value.values()), table)
    return any(_mentions(item, table) for item in value) if isinstance(value, list | tuple) else value is table


def _refuse_use(who: str, function: str) -> None:
    raise ModelError(
        f"{who}: its forward does something else with its table than to look it up ({function}), so the gradients of "
        "single examples cannot be found. Use nn.Embedding itself, as a part, or freeze it."
    )
