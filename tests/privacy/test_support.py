"""What cannot be trained privately is named before training, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn

from lightning_exposure.errors import ModelError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.support import refuse_unsupported


class WithParameter(nn.Module):
    """A parameter beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.temperature = nn.Parameter(torch.ones(1))


class Doubling(nn.LSTM):
    """An LSTM that is none."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        outputs, state = super().forward(input, hx)
        return 2 * outputs, state


class Buffered(nn.Module):
    """A layer of the user's with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("shift", torch.ones(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight + self.get_buffer("shift")


def with_old_weight_norm() -> nn.Module:
    return nn.utils.weight_norm(nn.Linear(2, 2))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (lambda: nn.BatchNorm1d(3), r"\(BatchNorm1d\): its statistics mix .* use nn.GroupNorm"),
    "batch norm in eval mode": (lambda: nn.BatchNorm2d(3).eval(), r"\(BatchNorm2d\): its statistics mix"),
    "frozen batch norm": (
        lambda: nn.BatchNorm1d(3).requires_grad_(False),
        r"\(BatchNorm1d\): .* leave it in eval mode",
    ),
    "synchronized batch norm": (lambda: nn.SyncBatchNorm(3), r"\(SyncBatchNorm\): its statistics mix"),
    "instance norm with memory": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        r"\(InstanceNorm1d\): its statistics mix .* or remember them",
    ),
    "lstm cell": (lambda: nn.LSTMCell(2, 2), r"\(LSTMCell\): .* use nn.LSTM, nn.GRU or nn.RNN over the whole sequence"),
    "an LSTM of its own kind": (lambda: Doubling(2, 2), r"\(Doubling\): is an nn.LSTM with a forward of its own"),
    "a parameter beside layers": (WithParameter, r"\(WithParameter\): .* 'temperature'; put them into a layer"),
    "a lazy layer": (lambda: nn.LazyLinear(3), r"\(LazyLinear\): .* show the model a batch"),
    "a sparse table": (lambda: nn.Embedding(3, 2, sparse=True), r"\(Embedding\): has 'sparse' set"),
    "a bounded table": (lambda: nn.Embedding(3, 2, max_norm=1.0), r"\(Embedding\): has 'max_norm' set"),
    "a table scaled by frequency": (
        lambda: nn.Embedding(3, 2, scale_grad_by_freq=True),
        r"\(Embedding\): has 'scale_grad_by_freq' set",
    ),
    "bags": (lambda: nn.EmbeddingBag(3, 2), r"\(EmbeddingBag\): .* use nn.Embedding"),
    "a list of parameters": (lambda: nn.ParameterList([torch.ones(2)]), r"\(ParameterList\): .* belong to no layer"),
    "two inputs": (lambda: nn.Bilinear(2, 2, 2), r"\(Bilinear\): takes two tensors"),
    "an unknown layer with a buffer": (Buffered, r"\(Buffered\): has buffers"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_a_part_is_refused_with_a_remedy(make: Callable[[], nn.Module], message: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(make()))
    with pytest.raises(ModelError, match=r"\n- '1.0' " + message):
        refuse_unsupported(model)
    with pytest.raises(ModelError, match=message):
        Clipping(model, max_grad_norm=1.0)


def test_weights_that_are_computed_from_others_are_refused() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(ModelError, match=r"'0' \(ParametrizedLinear\): .*remove the parametrization"):
        refuse_unsupported(model)


@pytest.mark.filterwarnings("ignore:.*torch.nn.utils.weight_norm:FutureWarning")
def test_parameters_that_a_kind_of_layer_does_not_have_are_refused() -> None:
    with pytest.raises(ModelError, match="'weight_g', 'weight_v'; remove or freeze them"):
        refuse_unsupported(nn.Sequential(with_old_weight_norm()))


def test_all_parts_are_named_at_once() -> None:
    model = nn.ModuleDict(
        {
            "norm": nn.BatchNorm1d(3),
            "fine": nn.Linear(2, 2),
            "cells": nn.ModuleList([nn.LSTMCell(2, 2), nn.GRUCell(2, 2)]),
            "loose": WithParameter(),
        }
    )
    with pytest.raises(ModelError) as caught:
        refuse_unsupported(model)
    lines = str(caught.value).splitlines()
    assert lines[0] == "The model cannot be trained privately as it is:"
    named = [line.split(" ")[1] for line in lines[1:]]
    assert named == ["'norm'", "'cells.0'", "'cells.1'", "'loose'"]


def test_a_parameter_of_the_model_itself_is_refused() -> None:
    model = LanguageModel(vocab_size=5, hidden_size=4, embedding_size=4)
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(ModelError, match=r"\n- the model itself \(LanguageModel\): .* 'scale'"):
        refuse_unsupported(model)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    for model in (nn.Linear(2, 2).requires_grad_(False), nn.ReLU()):
        with pytest.raises(ModelError, match="no trainable parameters"):
            refuse_unsupported(model)


FINE: dict[str, Callable[[], nn.Module]] = {
    "batch norm, frozen and asleep": lambda: nn.BatchNorm1d(3).requires_grad_(False).eval(),
    "instance norm without memory": lambda: nn.InstanceNorm1d(3, affine=True),
    "RNN": lambda: nn.RNN(2, 2),
    "LSTM in both directions": lambda: nn.LSTM(2, 2, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(2, 2, proj_size=1),
    "a frozen LSTM cell": lambda: nn.LSTMCell(2, 2).requires_grad_(False),
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "PyTorch's encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, batch_first=True), 2),
    "a frozen sparse table": lambda: nn.Embedding(3, 2, sparse=True).requires_grad_(False),
    "Opacus' attention": lambda: DPMultiheadAttention(4, 2, batch_first=True),
    "Opacus' LSTM, whose parameters have two names": lambda: DPLSTM(2, 2, bidirectional=True),
    "LSTM": lambda: nn.LSTM(2, 2, 3, dropout=0.5),
    "GRU": lambda: nn.GRU(2, 2, bias=False),
    "convolutions": lambda: nn.Conv2d(2, 2, 2, groups=2),
}


@pytest.mark.parametrize("make", FINE.values(), ids=FINE)
def test_these_are_fine(make: Callable[[], nn.Module]) -> None:
    refuse_unsupported(nn.Sequential(nn.Linear(2, 2), make()))


@pytest.mark.parametrize("architecture", ["lstm", "gru", "cnn", "wavenet", "transformer"])
def test_every_reference_model_is_fine(architecture: str) -> None:
    refuse_unsupported(LanguageModel(architecture, vocab_size=5, hidden_size=4, embedding_size=4))
