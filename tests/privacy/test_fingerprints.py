"""Fingerprints see any change; and nothing else."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.privacy.steps.fingerprints import (
    _WIDTH,
    content,
    fingerprint,
    fingerprints,
    weights_fingerprint,
)

LONG = 2 * _WIDTH * 9 + 13


def slow(tensor: Tensor) -> int:
    """The definition, word by word, in Python's own integers."""

    def mixed(number: int) -> int:
        bits = 2**64
        number = (number + 1) * 0x9E3779B97F4A7C15 % bits
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % bits
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB % bits
        return (number ^ (number >> 31)) | 1

    raw = bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
    whole = len(raw) // 8 * 8
    words = struct.unpack(f"<{whole // 8}q", raw[:whole])
    total = 0
    for row in range(0, max(1, len(words)), _WIDTH):
        some = words[row : row + _WIDTH]
        added = sum(word * mixed(place) + (word >> 32) * mixed(place + 2**32) for place, word in enumerate(some))
        total += added * mixed(row // _WIDTH + 2**40)
    if raw[whole:]:
        total += int.from_bytes(raw[whole:], "little") * mixed(whole + 2**48)
    return total % 2**64


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 2 * _WIDTH, 2 * _WIDTH + 3])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_it_is_what_it_says(size: int, kind: torch.dtype) -> None:
    values = (torch.randn(size, generator=torch.Generator().manual_seed(0)) * 100).to(kind)
    assert fingerprint(values) == slow(values)


@pytest.mark.parametrize("size", [1, 7, LONG])
def test_one_bit_anywhere_shows(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(0))
    before, bits = fingerprint(values), values.view(torch.int32)
    for place in {0, size // 2, size - 1}:
        for bit in range(32):
            bits[place] ^= 1 << bit if bit < 31 else -(2**31)
            assert fingerprint(values) != before
            bits[place] ^= 1 << bit if bit < 31 else -(2**31)
    assert fingerprint(values) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda x: -x,
        lambda x: x.roll(1),
        lambda x: x.flip(0),
        lambda x: x * (1 + 2**-23),
        lambda x: torch.where(torch.arange(len(x)) % 4 == 1, -x, x),  # signs in the same half of words
        lambda x: torch.cat([x[1::2], x[::2]]),
        lambda x: torch.zeros_like(x),
        lambda x: torch.cat([-x[:4], x[4:]]),
    ],
)
def test_changes_of_many_numbers_show(change: Any) -> None:
    for size in (8, 1000, LONG):
        values = torch.randn(size, generator=torch.Generator().manual_seed(1))
        assert fingerprint(change(values)) != fingerprint(values)


def test_the_way_it_lies_in_memory_does_not_matter() -> None:
    values = torch.randn(30, 7)
    assert fingerprint(values.t().contiguous().t()) == fingerprint(values)
    shifted = torch.cat([torch.zeros(1), values.flatten()])[1:]  # no longer where numbers of 64 bits may begin
    assert fingerprint(shifted) == fingerprint(values)
    assert fingerprint(nn.Parameter(values)) == fingerprint(values)


def test_shape_and_type_are_told_apart() -> None:
    zeros = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.zeros(0), torch.zeros(())]
    assert len({fingerprints({"x": value})["x"] for value in zeros}) == len(zeros)


def test_not_a_number_is_itself() -> None:
    assert fingerprint(torch.tensor([float("nan")])) == fingerprint(torch.tensor([float("nan")]))
    assert content(float("nan")) == content(float("nan"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, 2),
        (1, 1.0),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        ({"a": 1}, {"a": 2}),
        ({"a": torch.ones(2)}, {"a": torch.zeros(2)}),
        ("ab", b"ab"),
        (complex(1, 2), complex(2, 1)),
        (pickle.PickleBuffer, pickle.Pickler),
    ],
)
def test_content(first: Any, second: Any) -> None:
    assert content(first) == content(first)
    assert content(first) != content(second)


def test_content_of_sets_does_not_depend_on_their_order() -> None:
    assert content({"b", "a", "c"}) == content({"c", "b", "a"})


def test_weights_are_known_again_in_another_precision() -> None:
    layer = nn.Linear(3, 3)
    before = weights_fingerprint(layer.state_dict())
    assert weights_fingerprint(layer.double().state_dict()) == before
    with torch.no_grad():
        layer.weight[0, 0] += 1e-3
    assert weights_fingerprint(layer.state_dict()) != before


def test_the_arithmetic_of_other_devices_is_the_same() -> None:
    from lightning_exposure.privacy.steps.fingerprints import _row_sums_here, _row_sums_there

    raw = torch.randn(2 * _WIDTH * 3 + 10).view(torch.uint8)
    assert _row_sums_here(raw.numpy()).tolist() == _row_sums_there(raw).tolist()
