"""Is what `encode` makes of a canary like the items of the dataset it goes into?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lightning_exposure.errors import DataError

_PLAIN = (str, bytes, int, float, bool, complex, type(None))


def describe(value: Any) -> str:
    """The structure of an example in one line.

    >>> describe((torch.zeros(3, dtype=torch.long), {"label": 1}))
    "tuple(torch.int64 tensor of shape (3,), dict('label': int))"
    """
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if isinstance(value, _PLAIN):
        return type(value).__name__
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key!r}: {describe(item)}" for key, item in value.items())
        return f"{type(value).__name__}({inside})"
    if isinstance(value, Sequence):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    return type(value).__name__


def check_example(id_: str, example: Any, item: Any, *, same_shape: bool) -> None:
    """Refuse an example that does not look like the first item of the dataset.

    Args:
        id_: The canary, for the message; its text is a secret and stays out of it.
        example: What `encode` made of the canary.
        item: The first item of the dataset.
        same_shape: Whether the items are stacked, so that they all have the same shape.

    Raises:
        DataError: Structure, type or shape differ; the message names both.
    """
    problem = _difference(example, item, same_shape, "")
    if problem is not None:
        raise DataError(
            f"encode returned {describe(example)} for canary {id_!r}; expected {describe(item)}, like the first item "
            f"of the training dataset: {problem}. Make encode(text) return an example of the dataset's structure."
        )


def _difference(given: Any, wanted: Any, same_shape: bool, path: str) -> str | None:
    """Where two examples differ first; None if they are alike."""
    where = f"the item{path}" if path else "it"
    if isinstance(wanted, torch.Tensor | np.ndarray):
        return _array_difference(given, wanted, same_shape, where)
    if isinstance(wanted, _PLAIN) or not isinstance(wanted, Mapping | Sequence):
        return None if type(given) is type(wanted) else _expected(where, type(wanted).__name__, given)
    if type(given) is not type(wanted):
        return _expected(where, type(wanted).__name__, given)
    if isinstance(wanted, Mapping):
        if set(given) != set(wanted):
            return f"{where} has the keys {sorted(map(str, given))}, expected {sorted(map(str, wanted))}"
        parts = [(given[key], wanted[key], f"{path}[{key!r}]") for key in wanted]
    elif isinstance(wanted, list) and not same_shape and len(set(map(type, wanted))) <= 1:
        # A list of token ids that a collate function of the user's pads may have any length; its entries are alike.
        parts = [(entry, wanted[0], f"{path}[{place}]") for place, entry in enumerate(given) if wanted]
    elif len(given) != len(wanted):
        return f"{where} has {len(given)} entries, expected {len(wanted)}"
    else:
        parts = [(given[place], wanted[place], f"{path}[{place}]") for place in range(len(wanted))]
    return next(filter(None, (_difference(one, other, same_shape, at) for one, other, at in parts)), None)


def _array_difference(
    given: Any, wanted: torch.Tensor | np.ndarray[Any, Any], same_shape: bool, where: str
) -> str | None:
    kind = torch.Tensor if isinstance(wanted, torch.Tensor) else np.ndarray
    if not isinstance(given, kind):
        return _expected(where, "a tensor" if kind is torch.Tensor else "a numpy array", given)
    if given.dtype != wanted.dtype:
        return f"{where} has dtype {given.dtype}, expected {wanted.dtype}"
    if len(given.shape) != len(wanted.shape):
        return f"{where} has {len(given.shape)} dimensions, expected {len(wanted.shape)}"
    if same_shape and tuple(given.shape) != tuple(wanted.shape):
        return f"{where} has shape {tuple(given.shape)}, expected {tuple(wanted.shape)}"
    return None


def _expected(where: str, wanted: str, given: Any) -> str:
    return f"{where} is {type(given).__name__}, expected {wanted}"
