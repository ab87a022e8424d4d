"""Does a record look the same in its batch, whatever other records are put together with it?"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_exposure.errors import MixingError
from lightning_exposure.privacy.steps.proof._error import STOPPED
from lightning_exposure.privacy.steps.proof.reruns.rows import BatchRows, tensors_of
from lightning_exposure.privacy.steps.proof.reruns.undoing import RandomState, unnoticed

_LOOKS = 4
"""How often, with other random numbers each time."""
_BESIDE = 3

Make = Callable[[Sequence[Any]], Any]


def check_collate(make: Make, records: Sequence[Any], luck: np.random.Generator, *, state: Any = None) -> str | None:
    """Put a record into batches with others, and refuse a way to make batches that mixes them.

    A record may be anywhere in the batch, and be padded as much as the others need.

    Args:
        make: Makes a batch of records.
        records: Some of them; the first is the one that is looked at.
        luck: Chooses the random numbers; private.
        state: What may have a state that has to stay as it is, such as the collate function itself.

    Returns:
        What could not be looked at, and why; None if everything could.

    Raises:
        MixingError: The record looks otherwise among others.
    """
    first, others = records[0], list(records[1:])
    if not others:
        return None
    beside = (others * _BESIDE)[:_BESIDE]
    instead = ((others[_BESIDE:] or [first]) * _BESIDE)[:_BESIDE]
    with unnoticed(state):
        for _ in range(_LOOKS):
            seed = int(luck.integers(2**31))
            one, end = _made(make, [first, *beside], seed)
            again, _ = _made(make, [first, *beside], seed)
            if not one.rows.found or not again.rows.found:
                return "no records were found in the batches that collate_fn makes"
            if not _same_rows(one, again, ordered=True):
                return "collate_fn makes another batch of the same records with the same random numbers"
            rolled, rolled_end = _made(make, [first, *beside[1:], beside[0]], seed)
            other, other_end = _made(make, [first, *instead], seed)
            drew = end != _seeded(seed)
            # Random numbers belong to places in a batch: where the shape changes, so do they.
            comparable = not drew or (other_end == end and one.shapes == other.shapes)
            wrong = rolled_end == end and not (_has_first(one, rolled) or _same_rows(one, rolled))
            if wrong or (comparable and not _has_any(one, other) and not (drew and _same_rows(one, rolled))):
                raise MixingError(
                    "A record looks otherwise when other records are put into its batch: collate_fn, or a hook that "
                    "changes batches (on_before_batch_transfer, on_after_batch_transfer), mixes them, as Mixup and "
                    f"CutMix do, or takes statistics over the batch. {STOPPED} Change every record by itself, in the "
                    "dataset."
                )
    return None


def check_order(make: Make, records: Sequence[Any], luck: np.random.Generator, *, state: Any = None) -> str | None:
    """Put other records into a batch, one at a time, and refuse a way to make batches that moves the others.

    By itself a record may be anywhere. But those of a user are clipped together, and what tells them from others is
    their place.

    Args:
        make: Makes a batch of records.
        records: Some of them.
        luck: Chooses their order and the random numbers; private.
        state: What may have a state that has to stay as it is, such as the collate function itself.

    Returns:
        What could not be looked at, and why; None if everything could.

    Raises:
        MixingError: Records are in other places than they were put.
    """
    count, compared = len(records), len(records) < 2
    with unnoticed(state):
        for _ in range(_LOOKS):
            seed, put = int(luck.integers(2**31)), [records[place] for place in luck.permutation(count)]
            one, end = _made(make, put, seed)
            drew = end != _seeded(seed)
            for place in range(count if one.rows.found else 0):
                instead = put[(place + 1 + int(luck.integers(count))) % count]
                other, other_end = _made(make, [*put[:place], instead, *put[place + 1 :]], seed)
                if drew and (other_end != end or one.shapes != other.shapes):
                    continue  # the others may have got other random numbers
                compared = True
                if any(not _alike(one.each[k], other.each[k]) for k in range(count) if k != place):
                    raise MixingError(
                        "The records of a batch are not in the order in which they were drawn: collate_fn, a hook that "
                        "changes batches (on_before_batch_transfer, on_after_batch_transfer), or __getitems__ of the "
                        "dataset, puts them into another one, such as by their length. With unit='user' the records of "
                        f"a user are clipped together, and their places tell which they are. {STOPPED} Leave them in "
                        "their order; pack_padded_sequence(..., enforce_sorted=False) needs no other."
                    )
    return None if compared else "whether collate_fn leaves records in their order, by which users are told apart"


class _Made:
    """A batch, and its records one by one."""

    def __init__(self, batch: Any, records: int) -> None:
        self.rows = BatchRows(batch, records)
        self.each = [tensors_of(self.rows.take([place])) for place in range(records)] if self.rows.found else []
        self.shapes = [leaf.shape for leaf in tensors_of(batch) if isinstance(leaf, Tensor)]


def _seeded(seed: int) -> RandomState:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    return RandomState()


def _made(make: Make, records: Sequence[Any], seed: int) -> tuple[_Made, RandomState]:
    _seeded(seed)
    batch = make(copy.deepcopy(list(records)))  # it may work on them in place
    end = RandomState()
    return _Made(batch, len(records)), end


def _has_first(one: _Made, other: _Made) -> bool:
    return _alike(one.each[0], other.each[0])


def _has_any(one: _Made, other: _Made) -> bool:
    """Whether the batches have a record in common, wherever it is."""
    return any(_alike(mine, theirs) for mine in one.each for theirs in other.each)


def _same_rows(one: _Made, other: _Made, *, ordered: bool = False) -> bool:
    if ordered:
        return all(_alike(mine, theirs) for mine, theirs in zip(one.each, other.each, strict=True))
    return all(any(_alike(mine, theirs) for theirs in other.each) for mine in one.each)


def _alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(_same(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def _same(one: Any, other: Any) -> bool:
    """Whether two leaves are the same, but for padding at either end."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return isinstance(one, Tensor) == isinstance(other, Tensor) and (one == other or one is other)
    if one.dim() != other.dim() or one.dtype != other.dtype:
        return False
    if one.shape == other.shape:
        return torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-8, equal_nan=True)
    sizes = [min(pair) for pair in zip(one.shape, other.shape, strict=True)]
    for ends in (False, True):
        if torch.allclose(_cut(one, sizes, ends), _cut(other, sizes, ends), rtol=1e-5, atol=1e-8, equal_nan=True):
            return True
    return False


def _cut(value: Tensor, sizes: Sequence[int], ends: bool) -> Tensor:
    """The beginning of a tensor in every dimension, or its end."""
    for dimension, size in enumerate(sizes):
        value = value.narrow(dimension, value.shape[dimension] - size if ends else 0, size)
    return value.double()
