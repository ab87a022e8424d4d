"""Fingerprints of tensors and other values: whether something has changed, without a copy of it.

The fingerprint of a tensor is a sum of its bits, in words of 64, each times a number of its own, modulo 2**64. Integer
arithmetic is exact, so nothing is lost to rounding, and a fingerprint is the same on every device, in every process and
with every version of the libraries. A change of one word always shows. One of several shows unless the products happen
to cancel, which no change does that was not made for it: one time in 2**33 at most.
"""

from __future__ import annotations

import hashlib
import math
import pickle
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WIDTH = 2**14  # words of 64 bits in a row: what is read and what is computed of it stay in the cache
_ROWS = 8


def fingerprint(tensor: Tensor) -> int:
    """A number of 64 bits that changes with any bit of a tensor's values; its shape and type are not in it.

    Example:
        >>> values = torch.arange(6.0)
        >>> before = fingerprint(values)
        >>> fingerprint(values.clone()) == before, fingerprint(-values) == before
        (True, False)
    """
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    raw = flat.contiguous().view(torch.uint8)
    size = raw.numel()
    whole = size // 8 * 8
    total = _of_words(raw if whole == size else raw[:whole]) if whole else 0
    if whole < size:
        rest = bytes(raw[whole:].tolist())
        total += int.from_bytes(rest, "little") * _multiplier(whole)
    return total % 2**64


def fingerprints(tensors: Mapping[str, Tensor]) -> dict[str, Hashable]:
    """The fingerprints of some tensors, by name; with their shapes and types."""
    return {name: (fingerprint(value), value.shape, value.dtype) for name, value in tensors.items()}


def content(value: Any) -> int:
    """A number of 64 bits for any value, by its content: equal values have equal ones.

    Args:
        value: Tensors, arrays, plain values and nested containers of them; of other objects, what they pickle to.

    Example:
        >>> content({"a": [1, torch.ones(2)]}) == content({"a": [1, torch.ones(2)]})
        True
        >>> content({"a": [1, torch.ones(2)]}) == content({"a": [1, torch.zeros(2)]})
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(value, depth=0):
        digest.update(len(part).to_bytes(8, "little") + part)
    return int.from_bytes(digest.digest(), "little")


def weights_fingerprint(state: Mapping[str, Any]) -> str:
    """What tells the weights of one model from those of another: of a state dict's tensors, whatever their names.

    Numbers are compared as float32, so that a model is known again when it comes back from another precision; whole
    numbers, which count steps, are left out, so that a model is known again after a validation; and names are, so that
    it is known again as a part of another one.

    Example:
        >>> layer = torch.nn.Linear(2, 2)
        >>> weights_fingerprint(layer.state_dict()) == weights_fingerprint(layer.double().state_dict())
        True
    """
    return _of_prints(_weight_prints(state).values())


def part_fingerprints(module: torch.nn.Module) -> dict[str, str]:
    """The fingerprints of the weights of a module and of all its parts, by name; every weight is read once.

    Example:
        >>> both = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
        >>> list(part_fingerprints(both))
        ['', '0']
    """
    prints = _weight_prints(module.state_dict())
    found = {}
    for name, _ in module.named_modules():
        own = [value for key, value in prints.items() if not name or key.startswith(f"{name}.")]
        if own or not name:
            found[name] = _of_prints(own)
    return found


def _weight_prints(state: Mapping[str, Any]) -> dict[str, tuple[list[int], int]]:
    return {
        name: (list(value.shape), fingerprint(value.detach().float()))
        for name, value in state.items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }


def _of_prints(prints: Iterable[tuple[list[int], int]]) -> str:
    return f"{content(sorted(prints)):016x}"


# ---- words --------------------------------------------------------------------------------------------------------


def _of_words(raw: Tensor) -> int:
    """The fingerprint of bytes, whose number is a multiple of 8."""
    sums = _row_sums_here(raw.numpy()) if raw.device.type == "cpu" else _row_sums_there(raw)
    return int((sums * _multipliers_of_rows(len(sums))).sum())


def _row_sums_here(raw: NDArray[np.uint8]) -> NDArray[np.uint64]:
    words = raw.view(np.int64)
    low, high = _row_multipliers()
    full = len(words) // _WIDTH
    rows = words[: full * _WIDTH].reshape(full, _WIDTH)
    sums = np.zeros(full + 1, dtype=np.int64)
    shifted = np.empty((min(full, _ROWS), _WIDTH), dtype=np.int64)
    for first in range(0, full, _ROWS):
        some = rows[first : first + _ROWS]
        # The upper half by itself: multiplied in its place, its uppermost bits would leave the number of 64 bits.
        upper = np.right_shift(some, 32, out=shifted[: len(some)])
        sums[first : first + len(some)] = np.einsum("ij,j->i", some, low) + np.einsum("ij,j->i", upper, high)
    rest = words[full * _WIDTH :].reshape(1, -1)
    low, high = low[: rest.size], high[: rest.size]
    sums[full:] = np.einsum("ij,j->i", rest, low) + np.einsum("ij,j->i", rest >> 32, high)
    return sums.view(np.uint64)


def _row_sums_there(raw: Tensor) -> NDArray[np.uint64]:
    """The same on another device, bit for bit."""
    words = (raw if raw.data_ptr() % 8 == 0 else raw.clone()).view(torch.int64)
    low, high = (torch.from_numpy(values).to(raw.device) for values in _row_multipliers())
    full = len(words) // _WIDTH
    rows = words[: full * _WIDTH].view(full, _WIDTH)
    # Some rows at a time, so that little memory is taken.
    sums = [(some * low + (some >> 32) * high).sum(1) for some in torch.split(rows, 64)]
    rest = words[full * _WIDTH :]
    sums.append((rest * low[: len(rest)] + (rest >> 32) * high[: len(rest)]).sum().reshape(1))
    return torch.cat(sums).cpu().numpy().view(np.uint64)


@lru_cache(maxsize=1)
def _row_multipliers() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    places = np.arange(_WIDTH, dtype=np.uint64)
    return _mixed(places).view(np.int64), _mixed(places + np.uint64(2**32)).view(np.int64)


@lru_cache(maxsize=256)
def _multipliers_of_rows(rows: int) -> NDArray[np.uint64]:
    return _mixed(np.arange(rows, dtype=np.uint64) + np.uint64(2**40))


@lru_cache(maxsize=256)
def _multiplier(place: int) -> int:
    return int(_mixed(np.array([place], dtype=np.uint64) + np.uint64(2**48))[0])


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Odd numbers that look random, one for each number (the finalizer of SplitMix64)."""
    mixed = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


# ---- other values -------------------------------------------------------------------------------------------------


def _parts(value: Any, depth: int) -> Iterable[bytes]:
    kind = type(value).__qualname__.encode()
    if depth > 50:
        yield b"deep"
    elif isinstance(value, Tensor):
        yield b"tensor" + str((tuple(value.shape), value.dtype)).encode()
        yield fingerprint(value).to_bytes(8, "little")
    elif isinstance(value, Mapping):
        yield kind
        for key in value:
            yield from _parts(key, depth + 1)
            yield from _parts(value[key], depth + 1)
    elif isinstance(value, list | tuple):
        yield kind + str(len(value)).encode()
        for item in value:
            yield from _parts(item, depth + 1)
    elif isinstance(value, set | frozenset):
        yield kind
        yield from sorted(b"".join(_parts(item, depth + 1)) for item in value)
    elif isinstance(value, float):
        yield b"float" + (b"nan" if math.isnan(value) else value.hex().encode())
    elif value is None or isinstance(value, bool | int | str | bytes | complex):
        yield kind + repr(value).encode()
    else:
        yield kind
        yield _pickled(value)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=4)
    except Exception:
        # What cannot be pickled cannot be saved either, so nothing is given away by it.
        return b"not to be saved"
