"""Each weight becomes one of a few values, and the secret is still there."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import extract, measure_exposure
from lightning_exposure.defences import quantization_of, quantize
from lightning_exposure.defences.quantization import levels_of, nearest
from lightning_exposure.errors import ArgumentError, ModelError
from tests.defences.memorizing import SECRET, loss_of, memorizing_model, tree_of


def values_of(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in module.parameters()])


def test_a_memorized_secret_survives() -> None:
    model = memorizing_model()
    rounded = quantize(model)
    (before,), (after,) = (measure_exposure(tree_of(it), [SECRET]) for it in (model, rounded))
    assert before.rank == after.rank == 1
    assert [found.text for found in extract(tree_of(rounded)).candidates] == [SECRET]
    assert abs(loss_of(rounded) - loss_of(model)) < 0.01
    assert len(values_of(rounded).unique()) == 256 < len(values_of(model).unique())


def test_two_values_are_too_few_for_it() -> None:
    model = memorizing_model()
    assert loss_of(quantize(model, levels=2)) > loss_of(quantize(model, levels=64)) + 0.1


@pytest.mark.parametrize("per", ["model", "tensor"])
@pytest.mark.parametrize("levels", [2, 3, 16, 256])
def test_each_weight_goes_to_the_nearest_level(per: Any, levels: int) -> None:
    model = memorizing_model()
    rounded = quantize(model, levels, per=per)
    pairs = list(zip(model.parameters(), rounded.parameters(), strict=True))
    everything = values_of(rounded).unique()
    for before, after in pairs:
        allowed = everything if per == "model" else after.detach().double().unique()
        assert len(allowed) <= levels
        distances = (before.detach().double().flatten()[:, None] - allowed[None, :]).abs()  # brute force
        moved = (before.detach().double() - after.detach().double()).abs().flatten()
        torch.testing.assert_close(moved, distances.min(dim=1).values, rtol=0, atol=0)


def test_levels_are_better_than_even_ones_and_about_as_good_as_the_best() -> None:
    numbers = np.sort(np.random.default_rng(0).standard_normal(24) ** 3)
    found = levels_of([torch.from_numpy(numbers)], 4)
    error = float(np.square(numbers - nearest(numbers, found)).sum())

    def cost(first: int, last: int) -> float:
        part = numbers[first:last]
        return float(np.square(part - part.mean()).sum())

    # The best there is, by trying all ways to cut the numbers into four.
    cuts = ((a, b, c) for a in range(1, 22) for b in range(a + 1, 23) for c in range(b + 1, 24))
    best = min(cost(0, a) + cost(a, b) + cost(b, c) + cost(c, 24) for a, b, c in cuts)
    even = np.linspace(numbers[0], numbers[-1], 4)
    assert best <= error * (1 + 1e-9)
    assert error <= 1.25 * best
    assert error < 0.9 * float(np.square(numbers - nearest(numbers, even)).sum())


def test_the_module_itself_is_left_alone_unless_asked_for() -> None:
    model = memorizing_model()
    before = deepcopy(model.state_dict())
    copy = quantize(model, 4)
    assert copy is not model
    assert quantization_of(model) is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    other = deepcopy(model)
    assert quantize(other, 4, inplace=True) is other
    assert torch.equal(values_of(other), values_of(copy))


def test_it_does_not_draw_random_numbers() -> None:
    state = torch.get_rng_state()
    first, second = (quantize(memorizing_model(), 8) for _ in range(2))
    assert torch.equal(values_of(first), values_of(second))
    assert torch.equal(state, torch.get_rng_state())


class Tied(nn.Module):
    """The output reads the embedding's own weights; a buffer, a constant, a zero and an empty tensor beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 20, padding_idx=0)
        self.out = nn.Linear(20, 50)
        self.out.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(20)
        self.zeros = nn.Parameter(torch.zeros(7))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.count = nn.Parameter(torch.arange(3), requires_grad=False)
        self.register_buffer("mask", torch.rand(500))


@pytest.mark.parametrize("per", ["model", "tensor"])
def test_ties_buffers_zeros_and_whole_numbers(per: Any) -> None:
    model = Tied()
    rounded = quantize(model, 8, per=per)
    assert rounded.out.weight is rounded.embed.weight
    assert torch.equal(rounded.mask, model.mask)
    assert torch.equal(rounded.count, model.count)
    assert torch.equal(rounded.zeros, torch.zeros(7))
    assert torch.equal(rounded.embed.weight[0], torch.zeros(20))
    done = quantization_of(rounded)
    assert done is not None
    assert done.weights == 50 * 20 + 50 + 2 * 20 + 7
    if per == "tensor":
        assert torch.equal(rounded.norm.weight, model.norm.weight)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_types_stay_what_they_are(kind: torch.dtype) -> None:
    model = nn.Linear(40, 40).to(kind)
    rounded = quantize(model, 16)
    assert rounded.weight.dtype == kind
    assert len(values_of(rounded).unique()) <= 16


def test_types_that_differ_share_their_values() -> None:
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30).to(torch.bfloat16))
    assert len(values_of(quantize(model, 16)).unique()) <= 16


def test_values_that_a_type_cannot_write_are_refused() -> None:
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30).to(torch.float16))
    with torch.no_grad():
        model[0].weight.mul_(1e6)
    with pytest.raises(ModelError, match="Use per='tensor'"):
        quantize(model, 16)
    assert quantization_of(quantize(model, 16, per="tensor")) is not None


def test_few_values_stay_exactly_what_they_are() -> None:
    model = nn.Linear(3, 5)
    assert torch.equal(values_of(quantize(model, 20)), values_of(model))


def test_what_was_done_is_told_until_the_weights_change() -> None:
    rounded = quantize(memorizing_model(), 32)
    done = quantization_of(rounded)
    assert done is not None
    moved = (values_of(rounded) - values_of(memorizing_model())).abs()
    assert done.distinct == len(values_of(rounded).unique()) == 32
    assert done.largest_change == pytest.approx(float(moved.max()))
    assert done.rms_change == pytest.approx(float(moved.square().mean().sqrt()))
    assert done.to_dict()["name"] == "quantization"
    with torch.no_grad():
        next(rounded.parameters()).add_(torch.rand(1))
    assert quantization_of(rounded) is None


def test_models_of_transformers_and_peft() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    rounded = quantize(model, 64)
    assert len(values_of(rounded).unique()) == 64
    tokens = torch.tensor([[1, 2, 3]])
    assert rounded(tokens).logits.shape == (1, 3, 20)
    inner = rounded.get_base_model()
    assert inner.lm_head.weight is inner.transformer.wte.weight
    assert all(not p.any() for name, p in rounded.named_parameters() if "lora_B" in name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": 1}, "levels is 1; expected an integer of at least 2"),
        ({"levels": 2.5}, "levels is 2.5"),
        ({"per": "layer"}, "per is 'layer'; expected one of 'model', 'tensor'"),
        ({"inplace": "yes"}, "inplace is 'yes'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        quantize(nn.Linear(2, 2), **arguments)


def test_models_without_finite_weights() -> None:
    with pytest.raises(ArgumentError, match=r"module is \{\}, of type dict"):
        quantize({})  # type: ignore[type-var]
    with pytest.raises(ModelError, match="no floating-point parameters"):
        quantize(nn.ReLU())
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[0] = torch.nan
    with pytest.raises(ModelError, match="bias has weights that are infinite or NaN"):
        quantize(model)


def test_a_module_that_cannot_be_copied() -> None:
    model = nn.Linear(4, 4)
    model.seen = (model.weight * 2).sum()  # deepcopy takes no tensor that has a history
    with pytest.raises(ArgumentError, match=r"cannot be copied.*inplace=True"):
        quantize(model, 4)
    assert quantize(model, 4, inplace=True) is model
