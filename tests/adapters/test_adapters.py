"""A module's adapter is found by looking at its forward and trying it, and can be chosen by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters import RecurrentAdapter, StatelessAdapter, step_model
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import score
from tests.toys import Nested, Recurrent, Stateless, sharpened

CHARS = CharTokenizer.from_text("pin 0123456789")
SIZE = CHARS.vocab_size


class Wrapped(nn.Module):
    """A stateless model whose output is made different by a function."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.inner = Stateless(SIZE)
        self.change = change

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        return self.change(self.inner(tokens))


@pytest.mark.parametrize("model", [Recurrent(SIZE), Recurrent(SIZE, nn.GRU), Nested(SIZE)])
def test_a_forward_that_takes_and_returns_a_state_is_recurrent(model: nn.Module) -> None:
    assert isinstance(step_model(model), RecurrentAdapter)


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits,
        lambda logits: (logits, None),
        lambda logits: (logits, logits.mean()),
        lambda logits: (logits, torch.ones(len(logits), 4)),
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["logits", "no loss", "loss", "attention", "object"],
)
def test_anything_else_that_gives_logits_is_stateless(change: Any) -> None:
    model = Wrapped(change)
    adapter = step_model(model)
    assert isinstance(adapter, StatelessAdapter)
    logits, _ = adapter.start([1, 2, 3])
    torch.testing.assert_close(logits, model.inner(torch.tensor([[1, 2, 3]]))[:, -1])


def test_a_context_makes_any_module_stateless() -> None:
    adapter = step_model(Recurrent(SIZE), context=5)
    assert isinstance(adapter, StatelessAdapter)
    assert adapter.context == 5


def test_an_adapter_of_ones_own_is_used_as_it_is() -> None:
    adapter = StatelessAdapter(Stateless(SIZE))
    assert SecretTree(adapter, SecretFormat("pin ##"), CHARS).model is adapter


class StateRequired(nn.Module):
    """As in many older examples: forward cannot do without a state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Recurrent(SIZE, nn.GRU)

    def forward(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(tokens, hidden)


def test_a_forward_that_needs_a_state_says_how_to_choose_by_hand_and_works_then() -> None:
    model = sharpened(StateRequired(), seed=0)
    with pytest.raises(ModelError, match=r"RecurrentAdapter\(module, state_argument='...', initial_state=..."):
        step_model(model)
    by_hand = RecurrentAdapter(model, initial_state=lambda batch: torch.zeros(2, batch, 12, dtype=torch.float64))
    format = SecretFormat("pin ##")
    given = score(SecretTree(by_hand, format, CHARS), ["pin 12"]).costs
    assert given == pytest.approx(score(SecretTree(model.inner, format, CHARS), ["pin 12"]).costs)


class ForgetsItsState(Recurrent):
    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return super().forward(tokens, None)


def test_a_state_that_does_not_carry_what_was_read_is_noticed() -> None:
    with pytest.raises(ModelError, match="reading a string in two parts"):
        step_model(sharpened(ForgetsItsState(SIZE), seed=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits: logits[:, :2], r"shape \(2, 2, 14\) for token ids of shape \(2, 3\)"),
        (lambda logits: {"scores": logits}, r"returned dict with 'scores' without logits"),
        (lambda logits: logits.transpose(0, 1), r"shape \(3, 2, 14\)"),
        (lambda logits: logits[..., 0], r"shape \(2, 3\)"),
        (lambda logits: "text", "returned str without logits"),
    ],
)
def test_logits_of_a_wrong_shape_are_refused_with_the_remedy(change: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message + r".*Wrap it in a module"):
        step_model(Wrapped(change))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ModelError, match="model is str"):
        step_model("model")  # type: ignore[arg-type]


def test_a_context_of_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="context is 0"):
        StatelessAdapter(Stateless(SIZE), context=0)


def test_rows_of_different_lengths_are_read_as_if_alone() -> None:
    model = sharpened(Stateless(SIZE), seed=0)
    adapter = StatelessAdapter(model)
    states = [adapter.start(tokens)[1] for tokens in ([1, 2, 3], [4], [5, 6])]
    logits, after = adapter.step(adapter.concatenate(states), torch.tensor([7, 8, 9]))
    for row, tokens in enumerate([[1, 2, 3, 7], [4, 8], [5, 6, 9]]):
        torch.testing.assert_close(logits[row], model(torch.tensor([tokens]))[0, -1])
    logits, _ = adapter.step(adapter.select(after, torch.tensor([1, 1])), torch.tensor([2, 3]))
    torch.testing.assert_close(logits[1], model(torch.tensor([[4, 8, 3]]))[0, -1])


@pytest.mark.parametrize(("model", "adapter"), [(Recurrent, RecurrentAdapter), (ForgetsItsState, None)])
def test_an_untrained_head_does_not_hide_the_state(model: type[Recurrent], adapter: type | None) -> None:
    """With a head of zeros the logits are the same whatever was read; the states are not."""
    module = model(SIZE)
    with torch.no_grad():
        module.out.weight.zero_()
        module.out.bias.zero_()
    if adapter is None:
        with pytest.raises(ModelError, match="reading a string in two parts"):
            step_model(module)
    else:
        assert isinstance(step_model(module), adapter)


def test_a_step_model_that_is_a_module_is_used_as_it_is() -> None:
    class Own(StatelessAdapter, nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            nn.Module.__init__(self)
            StatelessAdapter.__init__(self, Stateless(SIZE))

    own = Own()
    assert step_model(own) is own
