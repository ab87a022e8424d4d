"""Clipping in one pass is clipping one by one, for every kind of layer and every way to use it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.modules import ConvolutionalNetwork, RecurrentNetwork, TransformerNetwork, WaveNet
from lightning_exposure.privacy.clipping import Clipping
from tests.privacy.per_example import assert_clips_like_a_loop, in_one_pass, mean_of_squares, one_by_one

BATCH, TIME, SIZE, ROWS = 5, 6, 4, 9


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def vectors(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*(shape or (BATCH, TIME, SIZE)), generator=generator, dtype=torch.float64)


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, ROWS, shape or (BATCH, TIME), generator=torch.Generator().manual_seed(1))


class Scale(nn.Module):
    """A layer that neither this library nor Opacus knows."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factors


class Reshaped(Scale):
    """Another one, which returns a view of its result."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).flatten(1)


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


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: RecurrentNetwork(ROWS, hidden_size=6, embedding_size=5),
    "gru": lambda: RecurrentNetwork(ROWS, cell="gru", hidden_size=6, embedding_size=5),
    "cnn": lambda: ConvolutionalNetwork(ROWS, hidden_size=6, embedding_size=5, num_layers=2),
    "wavenet": lambda: WaveNet(ROWS, hidden_size=6, embedding_size=5, num_layers=2),
    "transformer": lambda: TransformerNetwork(ROWS, hidden_size=8, num_heads=2, max_length=TIME),
    "transformer with sinusoids": lambda: TransformerNetwork(
        ROWS, hidden_size=8, num_heads=2, max_length=TIME, positions="sinusoidal"
    ),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_every_reference_model_is_clipped_as_in_a_loop(make: Callable[[], nn.Module]) -> None:
    assert_clips_like_a_loop(made(make), tokens())


def test_gpt2_is_clipped_as_in_a_loop_with_its_tied_weights() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=ROWS, n_positions=8, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = made(lambda: transformers.GPT2LMHeadModel(config)).train()
    assert model.lm_head.weight is model.transformer.wte.weight

    def loss(module: Any, ids: Tensor) -> Tensor:
        positions = torch.arange(TIME).repeat(len(ids), 1)
        logits = module(ids, position_ids=positions, use_cache=False).logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    assert_clips_like_a_loop(model, tokens(), loss)
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        with pytest.raises(ModelError, match=r"'transformer.wpe' \(Embedding\).*\(1, 6\).*Look up indices of shape"):
            model(tokens())


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


class Tied(nn.Module):
    """An embedding whose table is the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, SIZE)
        self.recurrent = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.head = nn.Linear(SIZE, ROWS)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.embedding(ids))[0])
        return logits


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


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("stand_in", [1, 3])
def test_an_empty_batch_sums_to_nothing_whatever_the_model_is_shown(
    make: Callable[[], nn.Module], stand_in: int
) -> None:
    model = made(make)
    clipping = Clipping(model, max_grad_norm=1.0)
    with clipping:
        clipping.begin(0)
        mean_of_squares(model, tokens(stand_in, TIME)).backward()
        sums = clipping.clipped_sum()
        assert list(sums) == list(model.parameters())
        assert not any(total.any() for total in sums.values())
        assert clipping.norms.shape == (0,)
        # and the next batch counts as ever
        clipping.begin(BATCH)
        mean_of_squares(model, tokens()).backward()
        assert all(total.any() for name, total in clipping.clipped_sum().items() if name.dim() > 1)


def test_an_empty_batch_needs_no_forward_pass() -> None:
    model = made(lambda: nn.Linear(SIZE, 3))
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(0)
        assert not any(total.any() for total in clipping.clipped_sum().values())


def test_a_batch_has_to_be_announced() -> None:
    model = made(lambda: nn.Linear(SIZE, 3))
    clipping = Clipping(model, max_grad_norm=1.0)
    with pytest.raises(ArgumentError, match="call attach first"):
        clipping.begin(3)
    with clipping:
        mean_of_squares(model, vectors()).backward()
        with pytest.raises(ArgumentError, match="call begin before the forward pass"):
            clipping.clipped_sum()
        with pytest.raises(ArgumentError, match="examples=-1: expected at least 0"):
            clipping.begin(-1)


def test_what_was_recorded_is_forgotten_after_each_batch() -> None:
    model, inputs = made(Tied), tokens()
    with Clipping(model, max_grad_norm=1.0) as clipping:
        sums = []
        for abandoned in (False, True, False):
            clipping.begin(BATCH)
            mean_of_squares(model, inputs).backward()
            if not abandoned:
                sums.append(clipping.clipped_sum())
    for parameter in model.parameters():
        assert torch.equal(sums[0][parameter], sums[1][parameter])


def test_measuring_between_forward_and_backward_leaves_no_trace() -> None:
    model, inputs = made(Tied), tokens()
    wanted, _ = in_one_pass(model, inputs, 1.0)
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        loss = mean_of_squares(model, inputs)
        model.eval()
        with torch.no_grad():
            model(tokens(2, 3))
        model.train()
        loss.backward()
        found = clipping.clipped_sum()
    for parameter, total in wanted.items():
        assert torch.equal(found[parameter], total)


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (
            nn.Sequential(nn.Embedding(ROWS, SIZE), nn.Linear(SIZE, ROWS)),
            lambda m, ids: (m[0](ids) + m[0](torch.arange(TIME))).sum(),
            r"'0' \(Embedding\): its inputs have the shape \(6,\), where dimension 0 should be the 5 examples of the "
            r"batch. Look up indices of shape \(batch, time\)",
        ),
        (
            nn.Sequential(nn.Embedding(ROWS, SIZE), nn.Linear(SIZE, ROWS)),
            lambda m, ids: m[1](m[0](ids).flatten(0, 1)).sum(),
            r"'1' \(Linear\): its inputs have the shape \(30, 4\).*Keep the batch as the first dimension",
        ),
        (
            nn.Sequential(nn.Embedding(ROWS, SIZE), nn.Linear(SIZE, ROWS)),
            lambda m, ids: m[1](m[0](ids).transpose(0, 1)).sum(),
            r"'1' \(Linear\): its inputs have the shape \(6, 5, 4\)",
        ),
        (
            nn.ModuleList([nn.Embedding(ROWS, SIZE), nn.LSTM(SIZE, SIZE)]),
            lambda m, ids: m[1](m[0](ids))[0].sum(),
            r"'1' \(LSTM\): its inputs have the shape \(5, 6, 4\), where dimension 1 should be the 5 examples",
        ),
    ],
    ids=["positions without a batch", "flattened steps", "time first", "a recurrent layer that wants time first"],
)
def test_a_layout_without_the_examples_is_refused(model: nn.Module, loss: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        in_one_pass(model, tokens(), 1.0, loss)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (
            lambda m, ids: functional.linear(m.head(m.embedding(ids)), m.embedding.weight.t()).sum(),
            "'embedding.weight'",
        ),
        (lambda m, ids: m(ids).sum() + m.head.bias.square().sum(), "'head.bias'"),
    ],
    ids=["functional tying", "a penalty"],
)
def test_a_gradient_outside_of_its_layer_is_refused(loss: Any, names: str) -> None:
    model = made(Tied)
    with pytest.raises(ModelError, match=rf"^{names}: got a gradient that did not come through the layer"):
        in_one_pass(model, tokens(), 1.0, loss)


def test_gradients_of_the_step_before_are_no_reason_to_refuse() -> None:
    model = made(lambda: nn.Linear(SIZE, 3))
    with Clipping(model, max_grad_norm=1.0) as clipping:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        clipping.begin(BATCH)
        mean_of_squares(model, vectors()).backward()
        clipping.clipped_sum()
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_layer_without_a_part_is_refused_in_the_first_batch_and_counts_as_zero_later() -> None:
    model = made(lambda: nn.ModuleList([nn.Linear(SIZE, 3), nn.LSTM(SIZE, 3), nn.Linear(SIZE, 3)]))
    with pytest.raises(ModelError, match=r"^'1', '2': had no part in the loss of the first batch"):
        in_one_pass(model, vectors(), 1.0, lambda m, x: m[0](x).sum())  # type: ignore[index]
    model[1].requires_grad_(False)
    clipping = Clipping(model, max_grad_norm=1.0)
    with clipping:
        for empty in (True, False):
            clipping.begin(0 if empty else BATCH)
            (model[0](vectors()).sum() + model[2](vectors()).sum()).backward()
            clipping.clipped_sum()
        clipping.begin(BATCH)
        model[0](vectors()).sum().backward()
        sums = clipping.clipped_sum()
        assert sums[model[0].weight].any()
        assert not sums[model[2].weight].any()
        clipping.begin(BATCH)  # nothing at all
        assert not any(total.any() for total in clipping.clipped_sum().values())
        assert torch.equal(clipping.norms, torch.zeros(BATCH))


def test_a_layer_with_two_inputs_is_refused() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(SIZE))

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return one * self.weight + other

    with pytest.raises(ModelError, match=r"'0' \(Gate\): takes or returns something else than one tensor"):
        in_one_pass(nn.ModuleList([Gate()]), vectors(), 1.0, lambda m, x: m[0](x, x).sum())  # type: ignore[index]


def test_batch_norm_that_wakes_up_is_refused() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(SIZE, 3), nn.BatchNorm1d(3).eval().requires_grad_(False)))
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        model(vectors(BATCH, SIZE)).sum().backward()
        clipping.clipped_sum()
        model.train()
        clipping.begin(BATCH)
        with pytest.raises(ModelError, match="BatchNorm1d was set to training mode"):
            model(vectors(BATCH, SIZE))


# --- what it leaves behind ------------------------------------------------------------------------------------------


class Everything(nn.Module):
    """A layer of every sort that is listened to in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, SIZE)
        self.recurrent = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.scale = Scale()
        self.norm = nn.BatchNorm1d(TIME).requires_grad_(False).eval()
        self.head = nn.Linear(SIZE, ROWS)
        self.fails = False

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.scale(self.recurrent(self.embedding(ids))[0])))
        if self.fails:
            self.head(logits)
        return logits


def snapshot(module: nn.Module) -> list[Any]:
    """All that is kept on a module and its parts, besides the numbers."""
    parts = [
        {name: dict(value) if isinstance(value, dict) else value for name, value in vars(part).items()}
        for part in module.modules()
    ]
    return [*parts, [(parameter, parameter.requires_grad, vars(parameter)) for parameter in module.parameters()]]


def test_the_module_is_left_as_it_was() -> None:
    model = made(Everything)
    before = snapshot(model)
    clipping = Clipping(model, max_grad_norm=1.0)
    clipping.attach()
    clipping.attach()
    during = snapshot(model)
    assert during != before
    clipping.begin(BATCH)
    mean_of_squares(model, tokens()).backward()
    clipping.clipped_sum()
    assert snapshot(model) == during
    clipping.detach()
    clipping.detach()
    assert snapshot(model) == before


def test_the_module_is_left_as_it_was_after_an_error_in_forward() -> None:
    model = made(Everything)
    before = snapshot(model)
    model.fails = True
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(tokens())
        assert all(parameter.requires_grad for parameter in model.head.parameters())
    model.fails = False
    assert snapshot(model) == before


def test_a_deep_copy_is_clipped_by_itself() -> None:
    model = made(Everything)
    wanted, _ = in_one_pass(model, tokens(), 1.0)
    clipping = Clipping(model, max_grad_norm=1.0)
    clipping.attach()
    other, twin = copy.deepcopy((model, clipping))
    assert twin.module is other
    for one, its in ((model, clipping), (other, twin)):
        its.begin(BATCH)
        mean_of_squares(one, tokens()).backward()
        found = its.clipped_sum()
        for parameter, total in zip(one.parameters(), (wanted.get(p) for p in model.parameters()), strict=True):
            if total is not None:
                assert torch.equal(found[parameter], total)
    # Detaching one does not silence the other, and a copy of the module alone works too.
    alone = copy.deepcopy(model)
    clipping.detach()
    twin.begin(BATCH)
    mean_of_squares(other, tokens()).backward()
    assert len(twin.clipped_sum()) == len(wanted)
    mean_of_squares(alone, tokens()).backward()
    mean_of_squares(model, tokens()).backward()
    for one, parameter in zip(alone.parameters(), model.parameters(), strict=True):
        assert (one.grad is None) == (parameter.grad is None)


def test_a_module_is_clipped_by_one_at_a_time() -> None:
    model = made(Tied)
    with (
        Clipping(model, max_grad_norm=1.0),
        pytest.raises(ModelError, match="'embedding' is clipped already: detach the other"),
    ):
        Clipping(model, max_grad_norm=1.0).attach()
    with Clipping(model, max_grad_norm=1.0):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0: expected a number above 0"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm=nan"),
        ({"max_grad_norm": 1.0, "loss_reduction": "none"}, "loss_reduction='none': expected 'mean' or 'sum'"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Clipping(nn.Linear(2, 2), **options)
