"""What we use of Opacus beyond its documented classes is still there, and means what we take it for; one test each."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from torch import nn

from lightning_exposure._opacus import (
    add_to_sum,
    clean_layer,
    clean_parameter,
    epsilon_by_losses,
    gradients_by_rule,
    gradients_vectorized,
    has_rule,
    moment,
    noise_dtype,
    prepare_vectorized,
)


def one_by_one(layer: nn.Module, inputs: torch.Tensor, grads: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of the weight, each example by itself: the slow and obvious way."""
    found = []
    for each, grad in zip(inputs, grads, strict=True):
        layer.zero_grad()
        layer(each[None]).backward(grad[None])
        weight = layer.weight.grad
        assert isinstance(weight, torch.Tensor)
        found.append(weight.clone())
    return found


# ---- accounting -----------------------------------------------------------------------------------------------


def test_moments_without_subsampling_are_those_of_the_gaussian_mechanism() -> None:
    assert moment(2.0, 1.0, order=8.0) == pytest.approx(8.0 / (2 * 2.0**2))


def test_a_moment_that_cannot_be_computed_is_infinite() -> None:
    assert moment(1e-200, 0.5, order=3.0) == math.inf


def test_the_distribution_of_the_privacy_loss_gives_an_upper_bound_of_epsilon() -> None:
    # One step without subsampling is the Gaussian mechanism, whose epsilon is known (Balle and Wang, 2018).
    def delta_of(epsilon: float, noise: float) -> float:
        normal = torch.distributions.Normal(0.0, 1.0)
        below = normal.cdf(torch.tensor(0.5 / noise - epsilon * noise)).double()
        above = normal.cdf(torch.tensor(-0.5 / noise - epsilon * noise)).double()
        return float(below - math.exp(epsilon) * above)

    found = epsilon_by_losses([(2.0, 1.0, 1)], 1e-3, span=8.0, mesh=0.001, tolerance=(1e-6, 0.01))
    assert found is not None
    assert delta_of(found, 2.0) < 1e-3 < delta_of(found - 0.03, 2.0)


def test_a_delta_that_is_smaller_than_its_tolerance_gives_nothing() -> None:
    assert epsilon_by_losses([(1.0, 0.5, 1)], 1e-6, span=3.0, mesh=0.01, tolerance=(1e-3, 0.01)) is None


# ---- per-example gradients of layers --------------------------------------------------------------------------


def test_opacus_has_rules_for_kinds_of_layers() -> None:
    assert has_rule(nn.GroupNorm)
    assert not has_rule(nn.PReLU)


def test_a_rule_gives_the_gradients_of_single_examples() -> None:
    layer = nn.Conv2d(1, 2, 2)
    inputs, grads = torch.randn(3, 1, 4, 4), torch.randn(3, 2, 3, 3)
    found = gradients_by_rule(layer, inputs, grads)[layer.weight]
    assert torch.allclose(found, torch.stack(one_by_one(layer, inputs, grads)), atol=1e-5)


def test_a_layer_without_a_rule_is_vectorized_and_cleaned_afterwards() -> None:
    layer = nn.PReLU(2)
    before = set(vars(layer))
    prepare_vectorized(layer)
    inputs, grads = torch.randn(3, 2), torch.randn(3, 2)
    found = gradients_vectorized(layer, inputs, grads)[layer.weight]
    assert torch.allclose(found, torch.stack(one_by_one(layer, inputs, grads)), atol=1e-6)
    assert set(vars(layer)) != before
    clean_layer(layer)
    assert set(vars(layer)) == before


# ---- the optimizer --------------------------------------------------------------------------------------------


def opacus_optimizer(parameter: nn.Parameter) -> DPOptimizer:
    inner = torch.optim.SGD([parameter], lr=1.0)
    return DPOptimizer(
        inner, noise_multiplier=0.0, max_grad_norm=1.0, expected_batch_size=4, loss_reduction="mean", generator=None
    )


def test_the_optimizer_steps_along_the_sums_that_stand_on_the_parameters() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = opacus_optimizer(parameter)
    add_to_sum(parameter, torch.tensor([4.0, 8.0]))
    assert torch.equal(add_to_sum(parameter, torch.tensor([4.0, 0.0])), torch.tensor([8.0, 8.0]))
    optimizer.add_noise()
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.tensor([8.0, 8.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_in_which_noise_is_drawn_is_known(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.zeros(5, dtype=dtype))
    inner, generator = torch.optim.SGD([parameter], lr=1.0), torch.Generator().manual_seed(0)
    optimizer = DPOptimizer(
        inner, noise_multiplier=1.0, max_grad_norm=2.0, expected_batch_size=1, loss_reduction="sum", generator=generator
    )
    add_to_sum(parameter, torch.zeros(5, dtype=dtype))
    optimizer.add_noise()
    again = torch.Generator().manual_seed(0)
    noise = torch.normal(0.0, 2.0, size=(5,), generator=again, dtype=noise_dtype(dtype))
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, noise.to(dtype))


def test_nothing_of_the_optimizer_stays_on_the_parameters() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    opacus_optimizer(parameter)
    assert vars(parameter)
    clean_parameter(parameter)
    assert not vars(parameter)


@pytest.mark.parametrize("kind", [DPOptimizer, DistributedDPOptimizer])
def test_the_optimizers_have_the_methods_that_are_replaced(kind: type[DPOptimizer]) -> None:
    wanted = {"clip_and_accumulate", "add_noise", "zero_grad", "attach_step_hook", "grad_samples"}
    assert wanted | {"accumulated_iterations", "params"} <= set(dir(kind))
    assert {"clip_and_accumulate", "add_noise", "scale_grad", "step_hook"} <= set(
        inspect.unwrap(DPOptimizer.pre_step).__code__.co_names
    )
