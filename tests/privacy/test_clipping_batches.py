"""What a batch has to be for its examples to be told apart, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from tests.privacy.models import BATCH, NETWORKS, ROWS, SIZE, TIME, Tied, made, tokens, vectors
from tests.privacy.per_example import assert_clips_like_a_loop, in_one_pass, mean_of_squares


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
        with pytest.raises(ArgumentError, match="examples is -1; expected an integer of at least 0"):
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


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Embedding(ROWS, SIZE), nn.Dropout(0.5), nn.Linear(SIZE, 3))


def test_a_module_that_trains_in_eval_mode_is_clipped_as_any_other() -> None:
    assert_clips_like_a_loop(made(with_dropout).eval(), tokens())
    assert_clips_like_a_loop(made(lambda: nn.Linear(SIZE, 3)).eval(), vectors())


def test_a_look_in_eval_mode_with_gradients_leaves_no_trace_in_a_batch_in_training_mode() -> None:
    model, inputs = made(Tied), tokens()
    wanted, _ = in_one_pass(model, inputs, 1.0)
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        loss = mean_of_squares(model, inputs)
        model.eval()
        assert model(tokens(2, 3)).requires_grad  # of another shape than the batch, and nobody goes back through it
        model.train()
        loss.backward()
        found = clipping.clipped_sum()
    for parameter, total in wanted.items():
        assert torch.equal(found[parameter], total)


def test_a_batch_that_is_put_into_eval_mode_halfway_is_refused_with_that_reason() -> None:
    model = made(with_dropout)
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        mean_of_squares(model.eval(), tokens()).backward()
        with pytest.raises(ModelError, match="or the module was put into eval mode after the batch had begun"):
            clipping.clipped_sum()


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_grad_norm": 0.0}, "max_grad_norm is 0.0; expected a number above 0"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm is nan"),
        ({"max_grad_norm": 1.0, "loss_reduction": "none"}, "loss_reduction is 'none'; expected one of 'mean', 'sum'"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Clipping(nn.Linear(2, 2), **options)


def test_a_gradient_that_is_not_finite_is_refused_and_not_summed() -> None:
    # Its clipped value would be zero times infinity, and one example would turn all weights into NaN.
    model = made(lambda: nn.Linear(SIZE, 3))
    inputs = vectors()
    inputs[1] = float("inf")
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(len(inputs))
        model(inputs).mean().backward()
        with pytest.raises(ModelError, match=f"The gradients of 1 of {len(inputs)} examples are infinite or not a"):
            clipping.clipped_sum()
