"""The proof of a step: private steps pass, and everything that only looks like one is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof import (
    FALSE_ALARM,
    Snapshot,
    check_clipping,
    check_noise,
    noise_limits,
    weights_of,
)

SHAPES = [(30, 20), (30,), (1,), (4, 4, 4), (0,)]


def tensors(seed: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=generator) for shape in SHAPES]


# ---- clipping -------------------------------------------------------------------------------------------------


def test_a_clipped_sum_passes_and_a_longer_one_does_not() -> None:
    gradients = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    norms = gradients.norm(dim=1)
    clipped = gradients * (5.0 / norms).clamp(max=1.0)[:, None]
    check_clipping([clipped.sum(0)], norms, examples=8, max_grad_norm=5.0)
    check_clipping([clipped.sum(0)[:20], clipped.sum(0)[20:]], norms, examples=8, max_grad_norm=5.0)
    one_way = torch.ones(8, 50)
    check_clipping([one_way.sum(0) * 5 / 50**0.5], one_way.norm(dim=1), examples=8, max_grad_norm=5.0)
    with pytest.raises(FitError, match=r"not clipped: the gradients of 8 examples.* at most 40; it was 56.57"):
        check_clipping([one_way.sum(0)], one_way.norm(dim=1), examples=8, max_grad_norm=5.0)


def test_examples_that_are_shorter_than_the_limit_add_up_to_less() -> None:
    with pytest.raises(FitError, match="not clipped"):
        check_clipping([torch.tensor([3.0])], torch.tensor([1.0, 1.0]), examples=2, max_grad_norm=5.0)


def test_an_empty_batch_adds_up_to_nothing() -> None:
    check_clipping([torch.zeros(5)], torch.ones(1), examples=0, max_grad_norm=1.0)
    with pytest.raises(FitError, match="not clipped"):
        check_clipping([torch.full((5,), 0.01)], torch.ones(1), examples=0, max_grad_norm=1.0)


def test_numbers_that_are_none_and_forgotten_examples_are_refused() -> None:
    with pytest.raises(FitError, match="not clipped"):
        check_clipping([torch.tensor([float("nan")])], torch.ones(2), examples=2, max_grad_norm=1.0)
    with pytest.raises(FitError, match="clipped 2 gradients of 3 examples"):
        check_clipping([torch.zeros(1)], torch.ones(2), examples=3, max_grad_norm=1.0)


# ---- noise ----------------------------------------------------------------------------------------------------


def step(seed: int, deviation: float, scale: float, length: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    sums = tensors(1000 + seed, length)
    return sums, [(total + noise) / scale for total, noise in zip(sums, tensors(seed, deviation), strict=True)]


@pytest.mark.parametrize("deviation", [1e-3, 0.5, 100.0])
@pytest.mark.parametrize("scale", [1.0, 12.5])
def test_noise_of_the_right_size_always_passes(deviation: float, scale: float) -> None:
    for seed in range(50):
        sums, gradients = step(seed, deviation, scale)
        check_noise(sums, gradients, scale=scale, deviation=deviation)


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.8, 1.3, 2.0])
def test_noise_of_another_size_is_refused(factor: float) -> None:
    sums, gradients = step(0, 0.5 * factor, 8.0)
    with pytest.raises(FitError, match="noise is not the one that was asked for"):
        check_noise(sums, gradients, scale=8.0, deviation=0.5)


def test_a_single_parameter_without_noise_is_refused() -> None:
    sums, gradients = step(0, 0.5, 8.0)
    for place in (1, 3):
        wrong = [total / 8.0 if number == place else gradients[number] for number, total in enumerate(sums)]
        with pytest.raises(FitError, match=rf"over {sums[place].numel()} numbers its standard deviation is"):
            check_noise(sums, wrong, scale=8.0, deviation=0.5)


def test_without_noise_the_gradient_is_the_sum() -> None:
    sums, gradients = step(0, 0.0, 8.0, length=1000.0)
    check_noise(sums, gradients, scale=8.0, deviation=0.0)
    gradients[0][0] *= 1.01
    with pytest.raises(FitError, match="expected noise_multiplier"):
        check_noise(sums, gradients, scale=8.0, deviation=0.0)


def test_noise_below_the_precision_of_numbers_is_not_held_against_a_step() -> None:
    sums, gradients = step(0, 1e-9, 8.0, length=100.0)
    check_noise(sums, gradients, scale=8.0, deviation=1e-9)


def test_limits_hold_as_often_as_they_say() -> None:
    noise = torch.randn(4000, 10, generator=torch.Generator().manual_seed(0)).square().sum(1)
    low, high = noise_limits(10, 0.05)
    assert 0.03 < float(((noise < low) | (noise > high)).double().mean()) < 0.07
    low, high = noise_limits(10**8, FALSE_ALARM)
    assert 0.999 < low / 10**8 < 1 < high / 10**8 < 1.001


# ---- weights --------------------------------------------------------------------------------------------------


class Odd(torch.optim.SGD):
    """An optimizer of somebody's own, with a number beside what PyTorch knows of."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.factor = 2.0

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["lr"] *= self.factor
        super().step(closure)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.5),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, fused=True),
    "adagrad": torch.optim.Adagrad,
    "tiny": lambda p: torch.optim.SGD(p, lr=1e-7),
    "odd": lambda p: Odd(p, lr=0.01),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    return model


def prepared(name: str) -> tuple[nn.Module, torch.optim.Optimizer, Any, dict[nn.Parameter, Tensor]]:
    """After two steps, so that there is a state; with a schedule, which puts a function of its own on the instance."""
    model = network()
    optimizer = OPTIMIZERS[name]([value for value in model.parameters() if value.requires_grad])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    gradients: dict[nn.Parameter, Tensor] = {}
    for _ in range(2):
        gradients = {value: torch.randn_like(value) for value in model.parameters() if value.requires_grad}
        for value, gradient in gradients.items():
            value.grad = gradient
        optimizer.step()
        schedule.step()
    return model, optimizer, schedule, {value: torch.randn_like(value) for value in gradients}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_along_the_private_gradient_passes_whatever_the_optimizer(name: str) -> None:
    model, optimizer, schedule, gradients = prepared(name)
    before = copy.deepcopy(optimizer.state_dict())
    snapshot = Snapshot(model, optimizer, weights_of(model))
    for value, gradient in gradients.items():
        value.grad = gradient.clone()
    optimizer.step()
    schedule.step()
    snapshot.check(model, gradients, gradients)
    # Looking has changed nothing: the same step from the same place gives the same state.
    moved, state = weights_of(model), copy.deepcopy(optimizer.state_dict())
    snapshot.check(model, gradients, gradients)
    assert str(before) != str(state) == str(optimizer.state_dict())
    assert all(torch.equal(value, moved[key]) for key, value in weights_of(model).items())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("wrong", ["without noise", "twice", "not at all", "a little more", "a frozen weight"])
def test_any_other_movement_is_refused(name: str, wrong: str) -> None:
    model, optimizer, _, gradients = prepared(name)
    snapshot = Snapshot(model, optimizer, weights_of(model))
    plain = {value: gradient + torch.randn_like(gradient) for value, gradient in gradients.items()}
    for value in gradients:
        value.grad = plain[value] if wrong == "without noise" else gradients[value]
    if wrong != "not at all":
        optimizer.step()
    if wrong == "twice":
        optimizer.step()
    with torch.no_grad():
        if wrong == "a little more":
            weight = model[0].weight  # type: ignore[index]
            weight[0, 0] += 0.01 + weight[0, 0].abs()
        elif wrong == "a frozen weight":
            model[1].bias += 0.1  # type: ignore[index]
    message = "moved as if there were no noise" if wrong == "without noise" else "moved otherwise than a private step"
    with pytest.raises(FitError, match=message):
        snapshot.check(model, gradients, plain)


def test_weights_that_moved_before_the_step_are_refused() -> None:
    model, optimizer, _, _ = prepared("adam")
    weights = weights_of(model)
    with torch.no_grad():
        model[0].bias[0] += 0.01  # type: ignore[index]
    with pytest.raises(FitError, match=r"0\.bias moved before the step"):
        Snapshot(model, optimizer, weights)
