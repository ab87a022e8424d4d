"""Batches of any structure: their fingerprints, a part of one, and one of equal examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_exposure.privacy.steps.fingerprints import fingerprint

_DEPTH = 5


def batch_prints(batch: Any) -> list[Hashable]:
    """The fingerprints of the tensors in a batch, in its order."""
    return [(fingerprint(value), value.shape, value.dtype) for value in _tensors(batch)]


def part_of(batch: Any) -> Any:
    """The first half of a batch; if it has one example, twice the same. What it does not understand, it leaves.

    Example:
        >>> part_of({"x": torch.arange(4), "names": ["a", "b", "c", "d"]})
        {'x': tensor([0, 1]), 'names': ['a', 'b']}
    """
    size = _examples(batch)
    if not size:
        return batch

    def part(value: Any) -> Any:
        if size > 1:
            return value[: size // 2]
        return torch.cat([value, value]) if isinstance(value, Tensor) else type(value)([*value, *value])

    return _with_rows(batch, size, part, part)


def alike(batch: Any) -> Any:
    """A batch of the same shape in which all examples are the first one.

    Example:
        >>> alike([torch.tensor([1, 2, 3]), torch.tensor(0.5)])
        [tensor([1, 1, 1]), tensor(0.5000)]
    """
    size = _examples(batch)
    return _with_rows(batch, size, lambda value: value[:1].expand_as(value).clone()) if size else batch


def _examples(batch: Any) -> int:
    """How many examples a batch has: as many as its first tensor is long; 0 if there is none."""
    return next((len(value) for value in _rows(batch)), 0)


def _rows(batch: Any) -> Iterator[Tensor]:
    """The tensors in mappings and lists that may have the examples in their first dimension."""
    if isinstance(batch, Tensor):
        if batch.dim():
            yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _rows(value)


def _with_rows(
    value: Any, size: int, change: Callable[[Tensor], Tensor], change_list: Callable[[Any], Any] | None = None
) -> Any:
    """A batch in which what has the examples in it is changed.

    Args:
        value: A batch, or a part of it.
        size: How many examples it has.
        change: Of tensors.
        change_list: Of lists that are no structures; None: they stay as they are.
    """
    if isinstance(value, Tensor):
        return change(value) if value.dim() and len(value) == size else value
    if isinstance(value, Mapping):
        made = copy.copy(value)
        for key in value:
            made[key] = _with_rows(value[key], size, change, change_list)  # type: ignore[index]
        return made
    if not isinstance(value, list | tuple):
        return value
    named = hasattr(value, "_fields")
    if change_list is not None and not named and len(value) == size and not any(True for _ in _rows(value)):
        return change_list(value)
    parts = [_with_rows(item, size, change, change_list) for item in value]
    return type(value)(*parts) if named else type(value)(parts)


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """All tensors and arrays of numbers, wherever they are."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf":
            yield torch.from_numpy(np.ascontiguousarray(value))
    elif depth <= _DEPTH and not isinstance(value, str | bytes):
        parts: Any = ()
        if isinstance(value, Mapping):
            parts = value.values()
        elif isinstance(value, list | tuple):
            parts = value
        elif hasattr(value, "__dict__") and not callable(value):
            parts = vars(value).values()
        for part in parts:
            yield from _tensors(part, depth + 1)
