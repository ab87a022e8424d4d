"""Step models of one's own are tried through their steps; a trial leaves no trace, and reaches the longest secret."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure.adapters import RecurrentAdapter, StatelessAdapter
from lightning_exposure.errors import ModelError
from lightning_exposure.walks import score
from tests.adapters.hf_models import CHARS as HF_CHARS
from tests.adapters.hf_models import MODELS
from tests.adapters.liars import (
    CHARS,
    PIN,
    SIZE,
    Network,
    Transformer,
    made,
)
from tests.toys import Recurrent, sharpened


class Own:
    """A StepModel written by hand, around an adapter."""

    def __init__(self, **changes: Any) -> None:
        self._inner = RecurrentAdapter(made(lambda: Recurrent(SIZE)))
        self.module = self._inner.module
        for name in ("start", "step", "select", "concatenate", "bytes_of"):
            setattr(self, name, changes.get(name, lambda inner: inner)(getattr(self._inner, name)))


def test_a_step_model_of_ones_own_is_tried_through_its_steps() -> None:
    SecretTree(Own(), PIN, CHARS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": lambda step: lambda state, tokens: (step(state, tokens)[0], state)}, "read in parts"),
        ({"select": lambda select: lambda state, rows: select(state, rows.flip(0))}, "read in parts|other rows"),
        ({"concatenate": lambda join: lambda states: join(states[::-1])}, "read in parts|other rows"),
        ({"step": lambda step: lambda state, tokens: step(state, tokens.roll(1))}, "read in parts|other rows"),
        ({"start": lambda start: lambda tokens: _noisy(*start(tokens))}, "different logits"),
        ({"start": lambda start: lambda tokens: (start(tokens)[0].softmax(-1), start(tokens)[1])}, "probabilities"),
    ],
    ids=["forgets", "selects", "joins", "rolls", "noise", "probabilities"],
)
def test_a_step_model_that_reads_wrongly_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        SecretTree(Own(**change), PIN, CHARS)  # type: ignore[arg-type]


def _noisy(logits: Tensor, state: Any) -> tuple[Tensor, Any]:
    return logits + torch.randn_like(logits), state


class Counting(Network):
    """Changes itself when it reads: an attribute, a buffer in place, a buffer for another, a random number."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("total", torch.zeros(1))
        self.register_buffer("mask", torch.zeros(1))
        self.lengths: list[int] = []

    def forward(self, tokens: Tensor) -> Any:
        self.calls += 1
        self.lengths.append(tokens.shape[1])
        self.total += 1
        self.mask = torch.zeros(tokens.shape[1])
        torch.rand(3)
        return super().forward(tokens)


def test_the_trial_leaves_no_trace_and_takes_a_handful_of_passes() -> None:
    model = made(Counting).train()
    model.cell.eval()
    adapter = StatelessAdapter(model)
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    SecretTree(adapter, PIN, CHARS)
    assert torch.equal(torch.rand(3), drawn)
    assert (model.calls, model.total.item(), model.mask.shape) == (0, 0, (1,))
    assert model.training
    assert not model.cell.training
    assert 5 <= len(model.lengths) <= 10
    assert max(model.lengths) == len("my pin is 12-3")  # the last token is never read


def test_a_model_that_cannot_read_the_longest_secret_says_so_before_any_number() -> None:
    class Short(Network):
        def forward(self, tokens: Tensor) -> Any:
            assert tokens.shape[1] <= 12, "block size"
            return super().forward(tokens)

    tree = SecretTree(Short(), PIN, CHARS)
    with pytest.raises(ModelError, match=r"failed on secrets of 14 tokens.*block size.*context="):
        measure_exposure(tree, ["my pin is 12-34"])
    assert score(SecretTree(Short(), PIN, CHARS, context=12), ["my pin is 12-34"]).costs[0] > 0


def test_a_mask_that_ends_too_early_is_found_at_the_length_of_the_longest_secret() -> None:
    class Forgetful(Transformer):
        def forward(self, tokens: Tensor) -> Any:
            self.causal = tokens.shape[1] <= 12
            return super().forward(tokens)

    SecretTree(made(lambda: Forgetful(causal=True)), SecretFormat("my pin is #"), CHARS)
    with pytest.raises(ModelError, match="is not causal"):
        SecretTree(made(lambda: Forgetful(causal=True)), PIN, CHARS)


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_models_pass(name: str) -> None:
    SecretTree(MODELS[name][0](), SecretFormat("my pin is #-#"), HF_CHARS)


class ShortMemory(nn.Module):
    """Sees all tokens that it is given at once, but hands on only the last eight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(SIZE, 8), nn.Linear(8, SIZE)

    def forward(self, tokens: Tensor, cache: Any = None) -> Any:
        features = self.embed(tokens)
        seen = features if cache is None else torch.cat([cache, features], dim=1)
        sums = torch.cumsum(torch.tanh(seen), dim=1)[:, -tokens.shape[1] :]
        return self.out(sums), seen[:, -8:]


def test_a_state_that_forgets_is_refused_where_secrets_are_long_enough_to_show_it() -> None:
    model = sharpened(ShortMemory(), seed=0)
    assert isinstance(SecretTree(model, SecretFormat("pin ##"), CHARS).model, RecurrentAdapter)
    with pytest.raises(ModelError, match=r"10 \+ 4 tokens are read in parts.*StatelessAdapter\(module\)"):
        SecretTree(model, PIN, CHARS)
    SecretTree(StatelessAdapter(model), PIN, CHARS)


def test_rounding_that_a_network_amplifies_is_no_mistake() -> None:
    model = sharpened(Recurrent(SIZE, nn.RNN, width=48), seed=0, scale=8.0, dtype=torch.float32)
    SecretTree(model, SecretFormat("my pin is " + "#" * 40), CHARS)
