"""Attention to a shared prompt is plain attention, in which every row has a copy of the prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_exposure.adapters.huggingface._attention import attend, hidden_keys, shared_attention
from lightning_exposure.errors import ModelError


def plainly(
    query: Tensor, prompt: Any, own: Any, row: int, length: int, window: int | None, softcap: float | None, sinks: Any
) -> Tensor:
    """One row, one head after the other, with all keys in one list."""
    heads, size = query.shape[1:]
    seen = []
    for head in range(heads):
        key_head = head // (heads // len(prompt[0]))
        keys = torch.cat([prompt[0][key_head], own[0][row, own[0].shape[1] - length :, key_head]])
        values = torch.cat([prompt[1][key_head], own[1][row, own[1].shape[1] - length :, key_head]])
        if window is not None:
            keys, values = keys[-window:], values[-window:]
        scores = keys @ query[row, head] * size**-0.5
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores, values = torch.cat([scores, sinks[head : head + 1]]), torch.cat([values, values[:1] * 0])
        seen.append(torch.softmax(scores, dim=0) @ values)
    return torch.stack(seen)


@pytest.mark.parametrize("window", [None, 2, 4, 9, 50])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize(("softcap", "sinks"), [(None, None), (0.7, None), (None, torch.tensor([0.5, -1.0, 2.0, 0.0]))])
def test_it_is_plain_attention(window: int | None, key_heads: int, softcap: Any, sinks: Any) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.tensor([3, 1, 4, 2])
    query = random(4, 4, 6)
    prompt, own = (
        (random(key_heads, 5, 6), random(key_heads, 5, 3)),
        (random(4, 4, key_heads, 6), random(4, 4, key_heads, 3)),
    )
    sinks = None if sinks is None else sinks.double()
    hidden = hidden_keys(lengths, 5, 4, window)
    given = attend(query, prompt, own, hidden=hidden, softcap=softcap, sinks=sinks)
    for row, length in enumerate(lengths.tolist()):
        right = plainly(query, prompt, own, row, length, window, softcap, sinks)
        torch.testing.assert_close(given[row], right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 1, 3, 6, 8, 9])
def test_hidden_keys_are_filling_and_what_left_the_window(window: int | None) -> None:
    prompt, columns, lengths = 4, 3, [1, 2, 3]
    mask = hidden_keys(torch.tensor(lengths), prompt, columns, window)
    assert mask is not None
    for row, length in enumerate(lengths):
        positions = [*range(prompt), *(prompt + length - 1 - back for back in range(columns - 1, -1, -1))]
        now = prompt + length - 1
        for key, position in enumerate(positions):
            filling = key >= prompt and position < prompt
            assert bool(mask[row, key]) == (filling or (window is not None and now - position >= window))


@pytest.mark.parametrize("window", [None, 6, 100])
def test_there_is_no_mask_where_every_row_sees_everything(window: int | None) -> None:
    assert hidden_keys(torch.tensor([2, 2]), 4, 2, window) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"attention_mask": torch.zeros(1)}, "a mask of its own"),
        ({"attention_mask": None, "position_bias": torch.zeros(1)}, "position_bias"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(asked: Any, message: str) -> None:
    one = torch.zeros(1, 1, 1, 2)
    with pytest.raises(ModelError, match=message):
        shared_attention(torch.nn.Identity(), one, one, one, **asked)
