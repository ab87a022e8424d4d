"""The fast recurrent layers: nn.LSTM, nn.GRU and nn.RNN in every number, and single examples besides."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.recurrent_layers import gru_layer, lstm_layer, rnn_layer, run_layers
from tests.privacy.per_example import assert_clips_like_a_loop, one_by_one

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")

SIZE, UNITS, BATCH, TIME = 5, 7, 4, 6
KINDS: dict[str, Callable[..., Any]] = {
    "LSTM": nn.LSTM,
    "LSTM, both directions": partial(nn.LSTM, bidirectional=True),
    "LSTM, projected": partial(nn.LSTM, proj_size=3),
    "LSTM, both directions, projected": partial(nn.LSTM, bidirectional=True, proj_size=3),
    "GRU": nn.GRU,
    "GRU, both directions": partial(nn.GRU, bidirectional=True),
    "RNN": nn.RNN,
    "RNN, relu, both directions": partial(nn.RNN, nonlinearity="relu", bidirectional=True),
}


def make(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return KINDS[kind](SIZE, UNITS, **{"num_layers": 2, "batch_first": True, **options}).double()


def a_batch(*shape: int, **options: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*(shape or (BATCH, TIME, SIZE)), generator=generator, dtype=torch.float64, **options)


def a_state(module: Any, batch: int = BATCH) -> list[Tensor]:
    places = module.num_layers * (2 if module.bidirectional else 1)
    sizes = [module.proj_size or UNITS, UNITS] if isinstance(module, nn.LSTM) else [UNITS]
    return [torch.randn(places, batch, size, dtype=torch.float64, requires_grad=True) for size in sizes]


def flat(outputs: Tensor, state: Any) -> list[Tensor]:
    return [outputs, *(state if isinstance(state, tuple) else [state])]


def everything(run: Any, module: nn.Module, inputs: Tensor, state: list[Tensor]) -> list[Tensor]:
    """Outputs, last states, and all gradients of something that depends on each of them in its own way."""
    torch.manual_seed(7)
    given = None if not state else tuple(state) if isinstance(module, nn.LSTM) else state[0]
    found = flat(*run(inputs, given))
    loss = sum((part * torch.arange(part.numel()).view(part.shape).cos()).sum() for part in found)
    return [*found, *torch.autograd.grad(loss, [inputs, *module.parameters(), *state])]


# --- as nn.LSTM and nn.GRU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("batch_first", "bias", "with_state", "dropout"),
    list(itertools.product([True, False], [True, False], [0, 1], [0, 0.4])),
)
def test_outputs_states_and_gradients_are_those_of_pytorch(
    kind: str, batch_first: bool, bias: bool, with_state: int, dropout: float
) -> None:
    module = make(kind, num_layers=3, batch_first=batch_first, bias=bias, dropout=dropout)
    inputs = a_batch(requires_grad=True)
    state = a_state(module, BATCH if batch_first else TIME) if with_state else []
    wanted = everything(module, module, inputs, state)
    found = everything(lambda *given: run_layers(module, *given), module, inputs, state)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("time", "batch"), [(1, 3), (3, 1), (1, 1), (3, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_batches_work(kind: str, time: int, batch: int) -> None:
    module = make(kind)
    inputs = a_batch(batch, time, SIZE, requires_grad=True)
    outputs, state = run_layers(module, inputs)
    outputs.sum().backward()
    if batch:
        for one, other in zip(flat(outputs, state), flat(*module(inputs)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    else:
        size = (module.proj_size or UNITS) * (2 if module.bidirectional else 1)
        assert outputs.shape == (0, time, size)
        assert flat(outputs, state)[-1].shape == (size // (module.proj_size or UNITS) * 2, 0, UNITS)


@pytest.mark.parametrize(("kind", "run"), [("LSTM", lstm_layer), ("GRU", gru_layer), ("RNN", rnn_layer)])
def test_a_layer_reports_what_its_two_maps_read_and_got_back(kind: str, run: Any) -> None:
    module = make(kind, num_layers=1)
    inputs, reports = a_batch(TIME, BATCH, SIZE), []
    no_state = [None] * (2 if kind == "LSTM" else 1)
    weights = tuple(weight.detach() for weight in module.parameters())
    outputs = run(inputs, *no_state, weights, lambda *tensors: reports.append(tensors))[0]
    outputs.square().sum().backward()
    module(inputs.transpose(0, 1))[0].square().sum().backward()
    ((read, d_read, before, d_before),) = reports
    torch.testing.assert_close(torch.einsum("tbi,tbj->ij", d_read, read), module.weight_ih_l0.grad)
    torch.testing.assert_close(torch.einsum("tbi,tbj->ij", d_before, before), module.weight_hh_l0.grad)
    torch.testing.assert_close(d_read.sum((0, 1)), module.bias_ih_l0.grad)
    torch.testing.assert_close(d_before.sum((0, 1)), module.bias_hh_l0.grad)


def test_outputs_may_be_changed_in_place() -> None:
    module = make("LSTM")
    outputs, _ = run_layers(module, a_batch())
    (outputs.relu_() * 2).sum().backward()
    found = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    (module(a_batch())[0].relu() * 2).sum().backward()
    for one, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_the_recurrence_stays_in_full_precision(kind: str) -> None:
    module = make(kind).float()
    inputs = a_batch().float()
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = run_layers(module, inputs.bfloat16())
        outputs.square().sum().backward()
    torch.testing.assert_close(outputs, module(inputs.bfloat16().float())[0], rtol=1e-5, atol=1e-5)
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())


# --- while clipping is attached -------------------------------------------------------------------------------------


class Wrapped(nn.Module):
    """A recurrent layer that is given a state, or sees time first."""

    def __init__(self, layers: Any, state: list[Tensor] | None = None) -> None:
        super().__init__()
        self.layers = layers
        self.start = state

    def forward(self, inputs: Tensor) -> Tensor:
        rows = len(inputs)
        state = None if self.start is None else [part[:, :rows].contiguous() for part in self.start]
        given = None if state is None else tuple(state) if isinstance(self.layers, nn.LSTM) else state[0]
        if self.layers.batch_first:
            outputs: Tensor = self.layers(inputs, given)[0]
            return outputs
        outputs, _ = self.layers(inputs.transpose(0, 1), given)
        return outputs.transpose(0, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_single_examples_are_clipped_as_in_a_loop(kind: str, batch_first: bool, bias: bool) -> None:
    assert_clips_like_a_loop(Wrapped(make(kind, batch_first=batch_first, bias=bias)), a_batch())


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_clips_as_a_loop_does(kind: str) -> None:
    assert_clips_like_a_loop(make(kind).float(), a_batch().float(), tolerance=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_long_sequences_are_clipped_as_in_a_loop(kind: str) -> None:
    # Longer than it is wide: here the gradients themselves are cheaper than the products of all pairs of steps.
    assert_clips_like_a_loop(make(kind), a_batch(BATCH, 40, SIZE))


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_state_carries_gradients(kind: str) -> None:
    def loss(module: nn.Module, inputs: Tensor) -> Tensor:
        return sum((part.square()).sum() for part in flat(*module(inputs))[1:]) / len(inputs)  # type: ignore

    assert_clips_like_a_loop(make(kind), a_batch(), loss)


@pytest.mark.parametrize("kind", KINDS)
def test_an_initial_state_that_is_the_same_for_all_is_used(kind: str) -> None:
    layers = make(kind)
    state = [part.detach()[:, :1].expand(-1, BATCH, -1) for part in a_state(layers)]
    module = Wrapped(layers, state)
    assert_clips_like_a_loop(module, a_batch())
    assert not torch.equal(module(a_batch()), Wrapped(module.layers)(a_batch()))


@pytest.mark.parametrize("kind", KINDS)
def test_an_initial_state_made_by_other_layers_teaches_them(kind: str) -> None:
    class Started(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = make(kind, num_layers=1)
            self.starts = nn.ModuleList(nn.Linear(SIZE, part.shape[2]) for part in a_state(self.layers))

        def forward(self, inputs: Tensor) -> Tensor:
            places = 2 if self.layers.bidirectional else 1
            state = [torch.stack([start(inputs[:, i]) for i in range(places)]) for start in self.starts]
            outputs: Tensor = self.layers(inputs, tuple(state) if len(state) > 1 else state[0])[0]
            return outputs

    assert_clips_like_a_loop(Started().double(), a_batch())


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_is_that_of_pytorch(kind: str) -> None:
    module = make(kind, dropout=0.5)
    torch.manual_seed(3)
    wanted = module(a_batch())[0]
    with Clipping(module, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        torch.manual_seed(3)
        assert torch.allclose(module(a_batch())[0], wanted, rtol=1e-10, atol=1e-10)
        torch.manual_seed(4)
        assert not torch.allclose(module(a_batch())[0], wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_outside_of_a_training_step_pytorch_itself_runs(kind: str) -> None:
    module = make(kind).float()
    inputs = a_batch().float()
    wanted = module(inputs)[0]
    with torch.no_grad():
        wanted_without_gradients = module(inputs)[0]
    with Clipping(module, max_grad_norm=1.0) as clipping:
        assert torch.equal(module(inputs)[0], wanted)  # no batch was announced
        clipping.begin(BATCH)
        with torch.no_grad():
            assert torch.equal(module(inputs)[0], wanted_without_gradients)
        module.eval()
        assert torch.equal(module(inputs)[0], wanted)
        module.train()
        module(inputs)[0].sum().backward()
        assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_are_those_of_pytorch(kind: str) -> None:
    module = make(kind)
    before = copy.deepcopy(module.state_dict())
    with Clipping(module, max_grad_norm=1.0):
        assert list(module.state_dict()) == list(before) == list(KINDS[kind](SIZE, UNITS, 2).state_dict())
        plain = make(kind)
        plain.load_state_dict(module.state_dict())
        module.load_state_dict({name: value + 1 for name, value in before.items()})
    assert all(torch.equal(value, before[name] + 1) for name, value in module.state_dict().items())


def test_what_the_kernels_cannot_read_is_refused_by_name() -> None:
    module = nn.Sequential(make("LSTM"))
    with Clipping(module, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        with pytest.raises(ModelError, match=r"'0' \(LSTM\): was given a tensor \(6, 5\). Give it a padded batch"):
            module(a_batch(TIME, SIZE))
        with pytest.raises(ModelError, match=r"\(3, 6, 5\), where dimension 0 should be the 4 examples"):
            module(a_batch(3, TIME, SIZE))
        with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
            module(a_batch(BATCH, TIME, SIZE + 1))
        with pytest.raises(RuntimeError, match="Expected hidden"):
            module[0](a_batch(), tuple(a_state(make("LSTM", num_layers=3))))
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_frozen_weights_stay_out_of_the_norm() -> None:
    module = make("LSTM")
    module.weight_hh_l0.requires_grad_(False)
    module.bias_ih_l1.requires_grad_(False)
    assert_clips_like_a_loop(module, a_batch())
    sums, _ = one_by_one(module, a_batch(), 1.0)
    assert len(sums) == 6
