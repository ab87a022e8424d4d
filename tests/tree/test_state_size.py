"""What a row will come to is known before any walk begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_exposure.adapters import RecurrentAdapter, StatelessAdapter
from lightning_exposure.tree._state_size import bytes_of_row
from tests.toys import Recurrent, Stateless

TOKEN = torch.tensor([3])


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
@pytest.mark.parametrize("adapter", [StatelessAdapter(Stateless(9)), RecurrentAdapter(Recurrent(9))])
def test_it_is_at_least_what_the_row_takes_when_all_was_read(adapter: Any, depth: int) -> None:
    _, state = adapter.start([1, 2])
    expected = bytes_of_row(adapter, state, TOKEN, depth)
    for _ in range(depth - 1):  # the last token of a secret is not read
        _, state = adapter.step(state, TOKEN)
    assert adapter.bytes_of(state) <= expected <= adapter.bytes_of(state) + 16


def test_a_model_that_knows_is_asked() -> None:
    class Knows(StatelessAdapter):
        def row_bytes(self, state: Any, depth: int) -> int:
            return 1000 * depth

    adapter = Knows(Stateless(9))
    assert bytes_of_row(adapter, adapter.start([1, 2])[1], TOKEN, 7) == 7000
