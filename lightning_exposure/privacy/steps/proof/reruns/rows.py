"""The examples of a batch, whatever the batch is made of: tensors, mappings, tuples, dataclasses, objects."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

_DEPTH = 8


class BatchRows:
    """A batch whose examples can be taken out of it, in any order and number.

    The examples are in the first dimension of a tensor that is as long as there are examples. What has no such
    dimension belongs to all of them.

    Args:
        batch: Whatever a training step is given.
        examples: How many examples it has.

    Attributes:
        found: Whether there is anything that has the examples in it.

    Example:
        >>> rows = BatchRows({"tokens": torch.arange(6).view(3, 2), "names": ["a", "b", "c"], "weight": 0.5}, 3)
        >>> rows.take([2, 0])
        {'tokens': tensor([[4, 5],
                [0, 1]]), 'names': ['c', 'a'], 'weight': 0.5}
        >>> BatchRows([1, 2], 3).found
        False
    """

    def __init__(self, batch: Any, examples: int) -> None:
        self._batch, self._examples = batch, examples
        self.found = self._has_rows(batch, _DEPTH)

    def take(self, places: Sequence[int]) -> Any:
        """A batch of the examples at some places of this one; the same place may be there several times."""
        return self._taken(self._batch, list(places), _DEPTH)

    def _taken(self, value: Any, places: list[int], depth: int) -> Any:
        if not self._has_rows(value, depth):
            return value
        if isinstance(value, Tensor):
            return value.index_select(self._dimension(value), torch.tensor(places, device=value.device))
        if isinstance(value, list | tuple) and not any(self._has_rows(part, depth - 1) for part in value):
            return _like(value, [value[place] for place in places])
        return _rebuilt(value, lambda part: self._taken(part, places, depth - 1))

    def _has_rows(self, value: Any, depth: int) -> bool:
        if isinstance(value, Tensor):
            return self._examples in value.shape
        if depth == 0 or isinstance(value, PackedSequence | str | bytes):
            return False
        if isinstance(value, list | tuple) and len(value) == self._examples:
            return True
        return any(self._has_rows(part, depth - 1) for part in _parts(value))

    def _dimension(self, value: Tensor) -> int:
        return list(value.shape).index(self._examples)


def tensors_of(value: Any, depth: int = _DEPTH) -> list[Any]:
    """All tensors, numbers and texts in a batch, in order.

    >>> tensors_of({"a": [1, "x"], "b": None})
    [1, 'x']
    """
    if isinstance(value, Tensor | int | float | complex | str | bytes):
        return [value]
    return [leaf for part in _parts(value) for leaf in tensors_of(part, depth - 1)] if depth else []


def _parts(value: Any) -> list[Any]:
    """What a structure is made of; nothing if it is none."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return list(vars(value).values())
    return []


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A structure of the same kind, with something else in it."""
    if isinstance(value, list | tuple):
        return _like(value, [change(part) for part in value])
    made = copy.copy(value)
    if isinstance(value, Mapping):
        made = made if hasattr(made, "__setitem__") else dict(value)
        for key in value:
            made[key] = change(value[key])
        return made
    for name, part in list(vars(value).items()):
        object.__setattr__(made, name, change(part))
    return made


def _like(value: list[Any] | tuple[Any, ...], parts: list[Any]) -> Any:
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*parts) if len(parts) == len(value) else tuple(parts)
    return type(value)(parts)
