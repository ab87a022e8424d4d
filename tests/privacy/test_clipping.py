"""Clipping in one pass is clipping one by one, for every kind of layer and every way to use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lightning_exposure.errors import ModelError
from lightning_exposure.modules import TransformerNetwork
from lightning_exposure.privacy.clipping.clipping import Clipping
from tests.privacy.models import BATCH, NETWORKS, ROWS, SIZE, TIME, Reshaped, Scale, Tied, made, tokens, vectors
from tests.privacy.per_example import assert_clips_like_a_loop, in_one_pass, mean_of_squares, one_by_one


class Attention(nn.Module):
    """Opacus' attention, of a signal to itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(SIZE, 2, batch_first=True, **options)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.attention(inputs, inputs, inputs)[0]
        return outputs


# --- kinds of layers ------------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Linear(SIZE, 3), vectors()),
    "linear without bias": (lambda: nn.Linear(SIZE, 3, bias=False), vectors()),
    "linear without time": (lambda: nn.Linear(SIZE, 3), vectors(BATCH, SIZE)),
    "linear over two middle dimensions": (lambda: nn.Linear(SIZE, 3), vectors(BATCH, 2, 3, SIZE)),
    "linear, more steps than weights": (lambda: nn.Linear(SIZE, 3), vectors(BATCH, 30, SIZE)),
    "linear, a wide one": (lambda: nn.Linear(SIZE, 40), vectors()),
    "embedding": (lambda: nn.Embedding(ROWS, SIZE), tokens()),
    "embedding with padding": (lambda: nn.Embedding(ROWS, SIZE, padding_idx=2), tokens()),
    "embedding without time": (lambda: nn.Embedding(ROWS, SIZE), tokens(BATCH)),
    "embedding over two middle dimensions": (lambda: nn.Embedding(ROWS, SIZE), tokens(BATCH, 2, 3)),
    "embedding, more steps than weights": (lambda: nn.Embedding(ROWS, 2), tokens(BATCH, 30)),
    "conv1d": (lambda: nn.Conv1d(SIZE, 3, 2), vectors(BATCH, SIZE, TIME)),
    "conv1d, padded": (lambda: nn.Conv1d(SIZE, 3, 3, padding=2, bias=False), vectors(BATCH, SIZE, TIME)),
    "conv1d, strided and dilated": (
        lambda: nn.Conv1d(SIZE, 3, 2, stride=2, dilation=2, padding=1),
        vectors(BATCH, SIZE, 9),
    ),
    "conv1d, same": (lambda: nn.Conv1d(SIZE, 3, 3, padding="same", dilation=2), vectors(BATCH, SIZE, TIME)),
    "conv1d, circular": (
        lambda: nn.Conv1d(SIZE, 3, 2, padding=1, padding_mode="circular"),
        vectors(BATCH, SIZE, TIME),
    ),
    "conv1d, groups": (lambda: nn.Conv1d(SIZE, 6, 2, groups=2), vectors(BATCH, SIZE, TIME)),
    "layer norm": (lambda: nn.LayerNorm(SIZE), vectors()),
    "layer norm without bias": (lambda: nn.LayerNorm(SIZE, bias=False), vectors()),
    "layer norm over time too": (lambda: nn.LayerNorm((TIME, SIZE)), vectors()),
    "layer norm without time": (lambda: nn.LayerNorm(SIZE), vectors(BATCH, SIZE)),
    "group norm": (lambda: nn.GroupNorm(2, TIME), vectors()),
    "instance norm": (lambda: nn.InstanceNorm1d(TIME, affine=True), vectors()),
    "RMS norm": (lambda: nn.RMSNorm(SIZE), vectors()),
    "conv2d": (lambda: nn.Conv2d(2, 3, 2), vectors(BATCH, 2, 4, 4)),
    "conv2d, reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), vectors(BATCH, 2, 4, 4)),
    "transposed convolution": (lambda: nn.ConvTranspose1d(SIZE, 3, 2), vectors(BATCH, SIZE, TIME)),
    "PReLU": (lambda: nn.PReLU(TIME), vectors()),
    "one of the user's": (Scale, vectors()),
    "one of the user's, first": (lambda: nn.Sequential(Scale(), nn.Linear(SIZE, 3)), vectors()),
    "Opacus' LSTM": (lambda: DPLSTM(SIZE, 3, 2, batch_first=True, bidirectional=True), vectors()),
    "Opacus' GRU": (lambda: DPGRU(SIZE, 3, batch_first=True), vectors()),
    "Opacus' RNN": (lambda: DPRNN(SIZE, 3, batch_first=True), vectors()),
    "Opacus' attention": (Attention, vectors()),
    "Opacus' attention with biases": (lambda: Attention(add_bias_kv=True), vectors()),
}


@pytest.mark.parametrize(("make", "inputs"), LAYERS.values(), ids=LAYERS)
def test_a_layer_is_clipped_as_in_a_loop(make: Callable[[], nn.Module], inputs: Tensor) -> None:
    assert_clips_like_a_loop(made(make), inputs)


def test_a_layer_that_reads_its_inputs_in_its_own_way_is_run_example_by_example() -> None:
    class Squares(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input.square())

    assert_clips_like_a_loop(made(lambda: Squares(SIZE, 3)), vectors())


def test_a_subclass_that_adds_nothing_to_forward_keeps_the_fast_rule() -> None:
    class Named(nn.Linear):
        pass

    assert_clips_like_a_loop(made(lambda: Named(SIZE, 3)), vectors())


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_every_reference_model_is_clipped_as_in_a_loop(make: Callable[[], nn.Module]) -> None:
    assert_clips_like_a_loop(made(make), tokens())


# --- ways to use them -----------------------------------------------------------------------------------------------


class Reusing(nn.Module):
    """Every layer several times, with different numbers of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.recurrent = nn.GRU(SIZE, SIZE, batch_first=True)
        self.norm = nn.LayerNorm(SIZE)
        self.group = nn.GroupNorm(1, TIME)

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(3):
            inputs = self.group(self.norm(self.recurrent(self.linear(inputs))[0]))
        outputs: Tensor = self.linear(self.norm(inputs[:, 0]))
        return outputs


class OddlyTied(nn.Module):
    """Layers of different kinds that share parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.other = nn.Linear(SIZE, SIZE)
        self.other.weight = self.linear.weight
        self.norm = nn.LayerNorm(SIZE)
        self.scale = Scale()
        self.scale.factors = self.norm.weight
        self.grouped = nn.Conv1d(2, SIZE, 2, groups=2)
        self.wide = nn.Linear(2, SIZE, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.other(self.scale(self.norm(torch.tanh(self.linear(inputs)))))
        return outputs + self.wide(self.grouped(inputs[:, :2].contiguous()).transpose(1, 2)[:, :1, :2])


def test_layers_may_be_used_several_times() -> None:
    assert_clips_like_a_loop(made(Reusing), vectors())


@pytest.mark.parametrize("steps", [TIME, 30])
def test_an_embedding_may_share_its_table_with_the_last_layer(steps: int) -> None:
    # With thirty steps the gradients of each are smaller than the products of all pairs of steps.
    assert_clips_like_a_loop(made(Tied), tokens(BATCH, steps))


def test_layers_of_different_kinds_may_share_parameters() -> None:
    assert_clips_like_a_loop(made(OddlyTied), vectors())


def test_an_embedding_may_share_its_table_with_a_layer_that_is_run_example_by_example() -> None:
    class Head(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    def make() -> nn.Module:
        model = nn.Sequential(nn.Embedding(ROWS, SIZE), Head(SIZE, ROWS))
        model[1].weight = model[0].weight
        return model

    assert_clips_like_a_loop(made(make), tokens())


def test_frozen_parts_stay_out_of_the_norm() -> None:
    model = made(NETWORKS["transformer"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.0" not in name and "norm.bias" not in name)
    assert_clips_like_a_loop(model, tokens())


def test_the_model_may_work_in_place_on_what_layers_return() -> None:
    model = made(
        lambda: nn.Sequential(nn.Linear(SIZE, 3), nn.ReLU(inplace=True), nn.Linear(3, 3), nn.ReLU(inplace=True))
    )

    def loss(module: Any, inputs: Tensor) -> Tensor:
        hidden = module[0](inputs)
        hidden *= 2
        return module[1:](hidden).square().sum() / len(inputs)

    assert_clips_like_a_loop(model, vectors(), loss)
    shaped = made(lambda: nn.Sequential(Scale(), Reshaped(), nn.ReLU(inplace=True)))
    assert_clips_like_a_loop(shaped, vectors())
    table = made(lambda: nn.Embedding(ROWS, SIZE))
    assert_clips_like_a_loop(table, tokens(), lambda module, ids: module(ids).mul_(3).square().sum() / len(ids))


def test_changing_in_place_what_a_layer_has_read_is_refused() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)))

    def loss(module: Any, inputs: Tensor) -> Tensor:
        hidden = module[0](inputs)
        outputs = module[1](hidden)
        hidden += 1
        total: Tensor = (hidden + outputs).sum()
        return total

    with pytest.raises(ModelError, match=r"'1' \(Linear\): its inputs were changed in place .* Work on a copy"):
        in_one_pass(model, vectors(), 1.0, loss)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_changes_nothing(reentrant: bool) -> None:
    model = made(lambda: nn.Sequential(nn.Linear(SIZE, 6), nn.Tanh(), nn.Linear(6, 3), nn.LSTM(3, 3)))

    def loss(module: Any, inputs: Tensor) -> Tensor:
        hidden: Any = checkpoint(module[1:3], module[0](inputs), use_reentrant=reentrant)
        return hidden.square().sum() / len(inputs)

    model[3].requires_grad_(False)
    assert_clips_like_a_loop(model, vectors(), loss)


def test_two_backward_passes_of_one_batch_add_up() -> None:
    model = made(lambda: nn.Linear(SIZE, 3))
    inputs = vectors()
    wanted, wanted_norms = one_by_one(model, inputs, 3.0, lambda m, x: (m(x).square().sum() + m(x).sum()) / len(x))
    with Clipping(model, max_grad_norm=3.0) as clipping:
        clipping.begin(BATCH)
        (model(inputs).square().sum() / BATCH).backward()
        (model(inputs).sum() / BATCH).backward()
        found = clipping.clipped_sum()
    torch.testing.assert_close(clipping.norms, wanted_norms)
    torch.testing.assert_close(found[model.weight], wanted[model.weight])  # type: ignore[index]


def test_a_loss_that_is_a_sum_is_not_scaled() -> None:
    model, inputs = made(lambda: nn.Linear(SIZE, 3)), vectors()
    wanted, wanted_norms = one_by_one(model, inputs, 2.0)
    clipping = Clipping(model, max_grad_norm=2.0, loss_reduction="sum")
    with clipping:
        clipping.begin(BATCH)
        (mean_of_squares(model, inputs) * BATCH).backward()
        found = clipping.clipped_sum()
    torch.testing.assert_close(clipping.norms, wanted_norms)
    for parameter, total in wanted.items():
        torch.testing.assert_close(found[parameter], total)


def test_dropout_is_drawn_once_for_forward_and_backward() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(SIZE, 40), nn.Dropout(0.5), nn.Linear(40, 3)))

    def loss(module: Any, inputs: Tensor) -> Tensor:
        # The same mask for every example, so that the loop over examples can draw it again.
        torch.manual_seed(5)
        mask = functional.dropout(torch.ones(1, 1, 40, dtype=torch.float64), 0.5)
        return module[2](module[0](inputs) * mask).square().sum() / len(inputs)

    assert_clips_like_a_loop(model, vectors(), loss)
    torch.manual_seed(5)
    plain = model(vectors())
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        torch.manual_seed(5)
        assert torch.equal(model(vectors()), plain)


# torch.backends.mkldnn.flags, on machines without Intel's GPUs
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")
def test_half_precision_is_measured_in_single_precision() -> None:
    torch.manual_seed(0)
    model = TransformerNetwork(ROWS, hidden_size=8, num_heads=2, max_length=TIME)

    def loss(module: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return mean_of_squares(module, ids)

    wanted, wanted_norms = one_by_one(model, tokens(), 1.0)
    # Without oneDNN, whose kernels for bfloat16 need instructions that not every virtual machine has.
    with torch.backends.mkldnn.flags(enabled=False):
        found, found_norms = in_one_pass(model, tokens(), 1.0, loss)
    assert found_norms.dtype == torch.float32
    torch.testing.assert_close(found_norms, wanted_norms, rtol=0.03, atol=0.0)
    for parameter, total in found.items():
        assert total.dtype == parameter.dtype
        torch.testing.assert_close(total, wanted[parameter], rtol=0.1, atol=0.05)


def test_squares_that_half_precision_cannot_hold_are_summed_right() -> None:
    # In float16, 300 squared is infinite already.
    model = made(lambda: nn.Linear(2, 1, bias=False)).half()
    inputs = torch.full((3, 2), 300.0, dtype=torch.float16)
    _, norms = in_one_pass(model, inputs, 1.0, lambda module, x: module(x).sum() / len(x))
    torch.testing.assert_close(norms, torch.full((3,), 300 * 2**0.5), rtol=1e-3, atol=0.0)
