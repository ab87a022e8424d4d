"""Packed batches of recurrent layers: PyTorch's numbers, and the gradients of the examples in their own order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.recurrent_layers import run_layers
from tests.privacy.per_example import assert_clips_like_a_loop, in_one_pass
from tests.privacy.test_recurrent import BATCH, KINDS, SIZE, TIME, a_batch, a_state, flat, make

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")

SORTED, MIXED = [TIME, 4, 4, 1], [2, TIME, 1, 4]


def padded(lengths: list[int]) -> Tensor:
    """A batch with zeros after the ends of its sequences."""
    inside = torch.arange(TIME) < torch.tensor(lengths)[:, None]
    return a_batch() * inside[:, :, None]


class Packing(nn.Module):
    """Packs what it is given, up to the last step that is not zero, and adds the last states to the outputs."""

    def __init__(self, layers: Any, *, enforce_sorted: bool) -> None:
        super().__init__()
        self.layers = layers
        self.enforce_sorted = enforce_sorted

    def forward(self, inputs: Tensor) -> Tensor:
        lengths = (inputs != 0).any(2).sum(1)
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=self.enforce_sorted)
        outputs, state = self.layers(packed)
        found, _ = pad_packed_sequence(outputs, batch_first=True, total_length=TIME)
        lasts = [part.transpose(0, 1).flatten(1).sum(1) for part in flat(found, state)[1:]]
        return found * (1 + torch.stack(lasts).sum(0)[:, None, None])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("lengths", "with_state", "dropout"), list(itertools.product([SORTED, MIXED], [False, True], [0, 0.4]))
)
def test_outputs_states_and_gradients_are_those_of_pytorch(
    kind: str, lengths: list[int], with_state: bool, dropout: float
) -> None:
    module = make(kind, dropout=dropout)
    state = a_state(module) if with_state else []
    given = None if not state else tuple(state) if isinstance(module, nn.LSTM) else state[0]

    def everything(run: Any) -> list[Tensor]:
        inputs = padded(lengths).requires_grad_()
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=lengths is SORTED)
        torch.manual_seed(7)
        outputs, last = run(packed, given)
        assert isinstance(outputs, PackedSequence)
        found = flat(pad_packed_sequence(outputs, batch_first=True)[0], last)
        loss = sum((part * torch.arange(part.numel()).view(part.shape).cos()).sum() for part in found)
        return [*found, *torch.autograd.grad(loss, [inputs, *module.parameters(), *state])]

    for one, other in zip(everything(lambda *x: run_layers(module, *x)), everything(module), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [SORTED, MIXED], ids=["sorted", "not sorted"])
def test_single_examples_are_clipped_as_in_a_loop(kind: str, lengths: list[int]) -> None:
    model = Packing(make(kind), enforce_sorted=lengths is SORTED)
    assert_clips_like_a_loop(model, padded(lengths))


def test_in_single_precision_too() -> None:
    model = Packing(make("LSTM, both directions, projected").float(), enforce_sorted=False)
    assert_clips_like_a_loop(model, padded(MIXED).float(), tolerance=1e-4)


def test_padding_has_no_part_in_anything() -> None:
    model = Packing(make("LSTM, both directions"), enforce_sorted=False)
    sums, norms = in_one_pass(model, padded(MIXED), 1e9)
    shorter, shorter_norms = in_one_pass(model, padded(MIXED)[[0, 2, 3]], 1e9)
    torch.testing.assert_close(norms[[0, 2, 3]], shorter_norms)
    assert all(not torch.equal(sums[parameter], shorter[parameter]) for parameter in sums)


def test_a_packed_batch_of_other_sequences_than_the_examples_is_refused() -> None:
    module = nn.Sequential(make("GRU"))
    packed = pack_padded_sequence(a_batch()[:3], [6, 4, 3], batch_first=True)
    with Clipping(module, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        with pytest.raises(
            ModelError, match=r"'0' \(GRU\): was given a PackedSequence of 3 sequences.* the 4 examples"
        ):
            module(packed)
        wrong = pack_padded_sequence(a_batch(BATCH, TIME, SIZE + 1), [6, 6, 6, 6], batch_first=True)
        with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
            module(wrong)
