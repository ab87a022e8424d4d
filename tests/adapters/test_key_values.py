"""Rows of a key-value cache: picked, joined and lengthened like the plain lists that they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_exposure.adapters._key_values import PromptKeyValues, RowKeyValues, join
from lightning_exposure.adapters._large_tensors import empty
from lightning_exposure.errors import ModelError

# Two layers whose keys and values have different sizes, so that there is more than one stack.
SIZES = [[(2, 3), (2, 5)], [(2, 3), (2, 3)]]
PROMPT = PromptKeyValues((7, 8), tuple(tuple(torch.zeros(h, 2, d) for h, d in pair) for pair in SIZES), {0: 0, 1: 1})  # type: ignore[misc]


def rows_of(*tokens: list[int]) -> RowKeyValues:
    """Rows whose keys and values say which token they belong to, read one token at a time."""
    joined = []
    for row in tokens:
        state = PROMPT.no_tokens()
        for token in row:
            state = state.with_one_more_column()
            for layer, pair in enumerate(SIZES):
                for which in range(len(pair)):
                    state.own(layer, which)[:, -1] = token
        joined.append(state)
    return join(joined)


def tokens_in(state: RowKeyValues) -> list[list[int]]:
    """The tokens of each row; all layers must agree, and say zero where there is none."""
    found = {tuple(map(tuple, own[..., 0, 0].int().tolist())) for own in _all(state)}
    assert len(found) == 1
    rows = []
    for row, length in zip(found.pop(), state.lengths.tolist(), strict=True):
        assert set(row[: len(row) - length]) <= {0}
        rows.append(list(row[len(row) - length :]))
    return rows


def _all(state: RowKeyValues) -> list[Tensor]:
    return [state.own(layer, which) for layer, pair in enumerate(SIZES) for which in range(len(pair))]


def test_rows_of_different_lengths_keep_their_tokens() -> None:
    assert tokens_in(rows_of([1, 2, 3], [], [4])) == [[1, 2, 3], [], [4]]


def test_picked_rows_take_no_more_columns_than_they_need() -> None:
    picked = rows_of([1, 2, 3], [4, 5], [6]).select(torch.tensor([2, 1, 2]))
    assert tokens_in(picked) == [[6], [4, 5], [6]]
    assert picked.columns == 2


def test_reading_on_twice_from_the_same_rows_gives_two_states_and_leaves_the_first_as_it_was() -> None:
    picked = rows_of([1, 2], [3]).select(torch.tensor([0, 1]))
    states = []
    for token in (8, 9):
        states.append(picked.with_one_more_column())
        for own in _all(states[-1]):
            own[:, -1] = token
    assert [tokens_in(state) for state in states] == [[[1, 2, 8], [3, 8]], [[1, 2, 9], [3, 9]]]
    assert tokens_in(picked) == [[1, 2], [3]]


def test_the_first_to_read_on_from_picked_rows_makes_no_copy() -> None:
    picked = rows_of([1, 2], [3]).select(torch.tensor([0, 1]))
    first, second = picked.with_one_more_column(), picked.with_one_more_column()
    assert first.stacks[0].data_ptr() == picked.stacks[0].data_ptr() != second.stacks[0].data_ptr()
    assert first.nbytes == picked.nbytes == second.nbytes  # the column that is not written yet is counted too


def test_states_after_different_prompts_are_not_joined() -> None:
    other = PromptKeyValues((7, 9), PROMPT.layers, PROMPT.numbers)
    with pytest.raises(ModelError, match="different prompts"):
        join([PROMPT.no_tokens(), other.no_tokens()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 0, 5), (2, 3), (1024, 1025, 3)])
def test_large_tensors_are_like_any_other(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = empty(torch.zeros(1, dtype=dtype), *shape)
    assert tensor.shape == shape
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    tensor.fill_(3)
    assert (tensor.clone() == 3).all()
