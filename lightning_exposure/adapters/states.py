"""Model states as nested containers of tensors, and where in each tensor the batch dimension is.

A recurrent model's state may be a tensor, an LSTM's pair, or anything nested from tuples, lists and dicts. To
select the states of some rows of a batch we need to know, for every tensor in it, which dimension is the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

ModelState = Any
"""What a model carries of what it read, for a batch of rows: opaque to everything but the adapter that made it."""


def map_tensors(function: Callable[..., Any], state: ModelState, *others: ModelState) -> ModelState:
    """Apply a function to every tensor of a nested state (and the tensors at the same place of others)."""
    if isinstance(state, (tuple, list)):
        items = [map_tensors(function, *parts) for parts in zip(state, *others, strict=True)]
        if isinstance(state, tuple) and hasattr(state, "_fields"):  # a named tuple takes its fields one by one
            return type(state)(*items)
        return type(state)(items)
    if isinstance(state, dict):
        return {key: map_tensors(function, value, *(o[key] for o in others)) for key, value in state.items()}
    return function(state, *others)


def tensors_of(state: ModelState) -> Iterator[Tensor]:
    """Every tensor of a nested state, in a fixed order."""
    if isinstance(state, (tuple, list)):
        for item in state:
            yield from tensors_of(item)
    elif isinstance(state, dict):
        for item in state.values():
            yield from tensors_of(item)
    elif isinstance(state, Tensor):
        yield state


def holds_tensors(state: ModelState) -> bool:
    """Whether a value is a nested container with nothing but tensors in it, and at least one."""
    if isinstance(state, (tuple, list)):
        return len(state) > 0 and all(holds_tensors(item) for item in state)
    if isinstance(state, dict):
        return len(state) > 0 and all(holds_tensors(item) for item in state.values())
    return isinstance(state, Tensor)


def batch_dimensions(of_two: ModelState, of_three: ModelState) -> ModelState:
    """For each tensor, which dimension is the batch: the one that is 2 in a batch of two and 3 in one of three.

    Returns:
        The same nesting with an int in the place of each tensor; -1 where none or several dimensions fit.
    """

    def find(two: Tensor, three: Tensor) -> int:
        if two.dim() != three.dim():
            return -1
        differing = [d for d in range(two.dim()) if two.shape[d] != three.shape[d]]
        fits = len(differing) == 1 and (two.shape[differing[0]], three.shape[differing[0]]) == (2, 3)
        return differing[0] if fits else -1

    return map_tensors(find, of_two, of_three)


def select_rows(state: ModelState, dimensions: ModelState, rows: Tensor) -> ModelState:
    """The states of some rows of a batch (a row may occur several times)."""
    return map_tensors(lambda tensor, dim: tensor.index_select(dim, rows), state, dimensions)


def concatenate(states: Sequence[ModelState], dimensions: ModelState) -> ModelState:
    """Several batches of states as one."""
    if len(states) == 1:
        return states[0]
    first, *others = states
    return map_tensors(lambda dim, *tensors: torch.cat(tensors, dim), dimensions, first, *others)


def bytes_of(state: ModelState) -> int:
    """The memory that the tensors of a state take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(state))
