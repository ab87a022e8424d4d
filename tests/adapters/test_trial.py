"""A model is tried before anything is measured with it, and refused by name if it is not what it seems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.adapters import StatelessAdapter
from lightning_exposure.errors import ModelError
from lightning_exposure.walks import score
from tests.adapters.hf_models import CHARS as HF_CHARS
from tests.adapters.hf_models import two_way_bert, xlnet
from tests.adapters.liars import (
    CHARS,
    LIARS,
    PIN,
    SIZE,
    Network,
    Shifted,
    Transformer,
    made,
)
from tests.toys import Constant, MergingTokenizer, Nested, Recurrent, Stateless, Table, sharpened


@pytest.mark.parametrize("scaled", [1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", LIARS)
def test_a_model_that_is_not_what_it_seems_is_refused_by_name(name: str, dtype: torch.dtype, scaled: float) -> None:
    make, message = LIARS[name]
    model = made(make).to(dtype)
    if scaled != 1.0:
        model = sharpened(model, seed=1, scale=scaled, dtype=dtype)
    with pytest.raises(ModelError, match=message):
        SecretTree(model, PIN, CHARS)


@pytest.mark.parametrize("make", [two_way_bert, xlnet])
def test_masked_language_models_are_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ModelError, match="is not causal"):
        SecretTree(make(), SecretFormat("my pin is #-#"), HF_CHARS)


class Spoilt(nn.Module):
    """A healthy network whose logits are changed."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner = Network()
        self.change = change

    def forward(self, tokens: Tensor) -> Any:
        return self.change(self.inner(tokens))


class PaddingIsZero(Network):
    """Embeds token 0 as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12, padding_idx=0)


class Experts(nn.Module):
    """Each token goes to one of two experts that are nearly alike, all tokens of an expert in one product."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12)
        self.cell = nn.GRU(12, 12, batch_first=True)
        self.gate = nn.Linear(12, 2)
        self.experts = nn.ModuleList(nn.Linear(12, SIZE) for _ in range(2))
        with torch.no_grad():
            self.gate.weight.mul_(1e-3)
            self.gate.bias.zero_()

    def forward(self, tokens: Tensor) -> Any:
        features = self.cell(self.embed(tokens))[0]
        flat = features.flatten(0, 1)
        chosen = self.gate(flat).argmax(-1)
        logits = flat.new_zeros(len(flat), SIZE)
        for number, expert in enumerate(self.experts):
            logits[chosen == number] = expert(flat[chosen == number])
        return logits.view(*tokens.shape, SIZE)


FIFTHS = torch.arange(SIZE) % 5 == 0

HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "network": Network,
    "transformer": lambda: Transformer(causal=True),
    "recurrent": lambda: Recurrent(SIZE),
    "nested": lambda: Nested(SIZE),
    "stateless": lambda: Stateless(SIZE),
    "constant": lambda: Constant(SIZE),
    "experts": Experts,
    "padding": PaddingIsZero,
    "log probabilities": lambda: Spoilt(lambda logits: logits.log_softmax(-1)),
    "last": lambda: Spoilt(lambda logits: logits[:, -1:]),
    "last, two dimensions": lambda: Spoilt(lambda logits: logits[:, -1]),
    "last, everywhere": lambda: Spoilt(lambda logits: logits[:, -1:].expand_as(logits)),
    "shifted logits": lambda: Spoilt(lambda logits: logits + 1e4),
    "scaled": lambda: Spoilt(lambda logits: logits * 20),
    "masked": lambda: Spoilt(
        lambda logits: logits.masked_fill(torch.arange(SIZE) % 5 == 0, torch.finfo(logits.dtype).min)
    ),
    "masked for good": lambda: Spoilt(lambda logits: logits.masked_fill(torch.arange(SIZE) % 5 == 0, float("-inf"))),
    "barely moves": lambda: Spoilt(lambda logits: logits * 1e-6 + torch.arange(SIZE).to(logits)),
    "tiny": lambda: Spoilt(lambda logits: logits * 1e-12),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HEALTHY)
def test_there_are_no_false_alarms(name: str, dtype: torch.dtype) -> None:
    for seed in range(4):
        model = made(HEALTHY[name], seed).to(dtype)
        SecretTree(model, PIN, CHARS)
        SecretTree(sharpened(model, seed, dtype=dtype), PIN, CHARS)


def after_three(prefix: str) -> list[float]:
    favourite = sum(map(int, prefix)) % 10
    return [0.1] * 10 if len(prefix) < 3 else [0.05 + 0.05 * (digit == favourite) for digit in range(10)]


def after_sevens(prefix: str) -> list[float]:
    return [0.1] * 10 if prefix[:3] != "777" else [0.01] * 9 + [0.9]


def the_last_but_one(prefix: str) -> list[float]:
    return [0.1] * 10 if len(prefix) < 2 else [0.01 + 0.9 * (str(digit) == prefix[-2]) for digit in range(10)]


@pytest.mark.parametrize("digits", [after_three, after_sevens, the_last_but_one])
def test_models_that_ignore_most_of_what_they_read_are_fine(digits: Any) -> None:
    SecretTree(Table(CHARS, digits), SecretFormat("my pin is ####"), CHARS)


def test_a_secret_of_one_token_and_a_root_of_one_token_can_be_tried() -> None:
    tokenizer = MergingTokenizer("p0123456789")
    for model in (Network(), Recurrent(SIZE)):
        SecretTree(model, SecretFormat("p#"), tokenizer)
    with pytest.raises(ModelError, match=r"other rows|time, batch"):
        SecretTree(Network(batch_first=False), SecretFormat("p#"), tokenizer)


def test_callers_hear_of_it_before_any_number() -> None:
    with pytest.raises(ModelError, match="shifts its input"):
        measure_exposure(SecretTree(made(Shifted), PIN, CHARS), ["my pin is 12-34"])
    with pytest.raises(ModelError, match="is not causal"):
        extract(SecretTree(StatelessAdapter(made(lambda: Network(bidirectional=True))), PIN, CHARS))


def test_the_remedy_for_time_first_works() -> None:
    right = made(Network)
    turned = made(lambda: Network(batch_first=False))
    turned.load_state_dict(right.state_dict())
    secrets = PIN.sample(5, seed=0)
    costs = score(SecretTree(StatelessAdapter(turned, time_first=True), PIN, CHARS), secrets).costs
    assert costs == pytest.approx(score(SecretTree(right, PIN, CHARS), secrets).costs, abs=1e-4)
