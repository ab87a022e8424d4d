"""What we use of PyTorch's private parts is still there, and still means what we take it for; one test each."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from lightning_exposure._torch import (
    FIXED_ATTRIBUTES,
    as_no_view,
    attention_with,
    convolves_like,
    gradient_is_hooked,
    has_old_backward_hook,
    inner_schedules,
    is_dropout,
    is_view,
    own_buffers,
    padding_of,
    writes_to,
)


def test_modules_have_the_attributes_that_no_step_changes() -> None:
    assert set(FIXED_ATTRIBUTES) <= set(vars(nn.Linear(1, 1)))


def test_autograd_counts_writes_in_place_but_not_those_to_data() -> None:
    tensor = torch.zeros(2)
    before = writes_to(tensor)
    tensor += 1
    assert writes_to(tensor) == before + 1
    tensor.data.add_(1)
    assert writes_to(tensor) == before + 1


def test_a_view_can_be_told_and_made_a_tensor_of_its_own_in_the_same_memory() -> None:
    tensor = torch.arange(6.0)
    view = tensor.view(2, 3)
    assert (is_view(tensor), is_view(view)) == (False, True)
    alone = as_no_view(view)
    assert not is_view(alone)
    assert alone.data_ptr() == tensor.data_ptr()
    assert torch.equal(alone, view)


def test_the_buffers_of_a_layer_can_be_put_back_those_that_are_none_too() -> None:
    layer = nn.BatchNorm1d(2)
    layer.register_buffer("empty", None)
    before = dict(own_buffers(layer))
    assert before["empty"] is None
    layer.running_mean = torch.ones(2)
    own_buffers(layer).update(before)
    assert layer.running_mean is before["running_mean"]
    assert "0.weight" not in own_buffers(nn.Sequential(layer))


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_the_gradient_of_a_parameter_show(register: str) -> None:
    parameter = nn.Parameter(torch.zeros(1))
    assert not gradient_is_hooked(parameter)
    handle = getattr(parameter, register)(lambda value: None)
    assert gradient_is_hooked(parameter)
    handle.remove()
    assert not gradient_is_hooked(parameter)


def test_old_backward_hooks_are_told_from_full_ones() -> None:
    old, full = nn.Linear(1, 1), nn.Linear(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old.register_backward_hook(lambda *arguments: None)
    full.register_full_backward_hook(lambda *arguments: None)
    assert [has_old_backward_hook(layer) for layer in (nn.Linear(1, 1), old, full)] == [False, True, False]


def test_a_convolution_of_ones_own_is_told_from_that_of_pytorch() -> None:
    class Own(nn.Conv1d):
        def _conv_forward(self, *arguments: Any) -> Tensor:
            return 2 * super()._conv_forward(*arguments)

    assert convolves_like(nn.Conv1d(1, 1, 1), nn.Conv1d)
    assert not convolves_like(Own(1, 1, 1), nn.Conv1d)
    assert torch.equal(Own(1, 1, 1)(torch.zeros(1, 1, 1)).isnan(), torch.zeros(1, 1, 1).bool())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("padding", [0, 2, "same"])
def test_the_padding_of_a_convolution(padding: Any) -> None:
    layer, inputs = nn.Conv1d(1, 1, 4, padding=padding), torch.randn(2, 1, 9)
    padded = functional.pad(inputs, padding_of(layer))
    torch.testing.assert_close(functional.conv1d(padded, layer.weight, layer.bias), layer(inputs))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("sizes", [None, 3], ids=["one weight", "a weight for each"])
def test_attention_makes_its_projections_by_the_function_linear(need_weights: bool, sizes: Any) -> None:
    layer, signal = nn.MultiheadAttention(4, 2, kdim=sizes, vdim=sizes), torch.randn(5, 2, 4)
    read = signal if sizes is None else torch.randn(5, 2, sizes)
    shapes = []

    def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        shapes.append((tuple(inputs.shape), tuple(weight.shape)))
        return functional.linear(inputs, weight, bias)

    outputs, weights = attention_with(linear)(
        *(signal, read, read, 4, 2, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0),
        *(layer.out_proj.weight, layer.out_proj.bias),
        need_weights=need_weights,
        use_separate_proj_weight=sizes is not None,
        q_proj_weight=layer.q_proj_weight,
        k_proj_weight=layer.k_proj_weight,
        v_proj_weight=layer.v_proj_weight,
    )
    wanted = layer(signal, read, read, need_weights=need_weights)
    torch.testing.assert_close((outputs, weights), wanted)
    inner = [((5, 2, 4), (12, 4))] if sizes is None else [((5, 2, 4), (4, 4)), *[((5, 2, 3), (4, 3))] * 2]
    assert shapes == [*inner, ((10, 4), (4, 4))], "steps and rows are in one dimension before the last"


def test_all_dropout_layers_are_known() -> None:
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    assert all(is_dropout(kind()) for kind in kinds)
    assert not is_dropout(nn.Identity())


def test_schedules_that_are_made_of_others() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    assert list(inner_schedules(lr_scheduler.SequentialLR(optimizer, parts, [1]))) == parts
    assert list(inner_schedules(lr_scheduler.ChainedScheduler(parts))) == parts
    assert not inner_schedules(parts[0])


def test_a_loader_asks_for_its_indices_in_one_place_and_keeps_its_iterator_in_another() -> None:
    class Counting(DataLoader[Any]):
        asked = 0

        @property
        def _index_sampler(self) -> Any:
            Counting.asked += 1
            return super()._index_sampler

    loader = Counting([1, 2, 3])  # type: ignore[arg-type]
    assert vars(loader)["_iterator"] is None
    assert len(list(loader)) == 3
    assert Counting.asked
