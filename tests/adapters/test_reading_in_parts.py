"""One trial for all models: does what is read in parts give what is read at once?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.adapters import RecurrentAdapter
from lightning_exposure.adapters._differences import SameLogits
from lightning_exposure.adapters._reading_in_parts import difference_in_parts
from lightning_exposure.adapters.protocol import evaluating
from tests.toys import Nested, Recurrent, sharpened

SIZE = 14
PROMPT, PATHS = [3, 1, 4, 1], [[5, 9, 2], [6, 5, 3]]


def adapter_of(model: nn.Module, *, spoilt: Callable[[Any], None] | None = None) -> Any:
    adapter: Any = RecurrentAdapter(model)
    if spoilt is not None:
        spoilt(adapter)
    return adapter


def reason(adapter: Any, **options: Any) -> str | None:
    with evaluating(adapter.module):
        return difference_in_parts(adapter, RecurrentAdapter(adapter.module).at_once, PROMPT, PATHS, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("kind", [Recurrent, Nested])
def test_a_state_that_carries_what_was_read(kind: type[nn.Module], scale: float, dtype: torch.dtype) -> None:
    model = sharpened(kind(SIZE), seed=0, scale=scale, dtype=dtype)
    assert reason(adapter_of(model)) is None


def replaced(name: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Put a wrong method in the place of a right one."""

    def change(adapter: Any) -> None:
        setattr(adapter, name, make(getattr(adapter, name)))

    return change


def forgetting(step: Any) -> Any:
    return lambda state, tokens: step(tuple(torch.zeros_like(part) for part in state), tokens)


def a_little_off(step: Any) -> Any:
    def changed(state: Any, tokens: Tensor) -> Any:
        logits, after = step(state, tokens)
        return logits * 1.01, after

    return changed


def in_another_order(concatenate: Any) -> Any:
    def reverse(states: Sequence[Any]) -> Any:
        return concatenate(list(states)[::-1])

    return reverse


def always_the_first_row(select: Any) -> Any:
    return lambda state, rows: select(state, torch.zeros_like(rows))


def carrying_something_else(step: Any) -> Any:
    def changed(state: Any, tokens: Tensor) -> Any:
        logits, after = step(state, tokens)
        return logits, tuple(part + 0.5 * (len(tokens) == 1) for part in after)

    return changed


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (replaced("step", forgetting), "4 + 3 tokens read in parts give other logits than read at once"),
        (replaced("step", a_little_off), "4 + 3 tokens read in parts give other logits than read at once"),
        (replaced("concatenate", in_another_order), "in several rows give other logits"),
        (replaced("select", always_the_first_row), "in several rows give other logits"),
    ],
)
def test_what_is_wrong_is_named(spoilt: Any, says: str) -> None:
    adapter = adapter_of(sharpened(Recurrent(SIZE), seed=0), spoilt=spoilt)
    assert says in str(reason(adapter))


def headless(model: Any) -> Any:
    """A head that was never trained: the logits are the same whatever was read."""
    nn.init.zeros_(model.out.weight)
    return model


def test_an_untrained_head_hides_no_difference_of_states() -> None:
    model = headless(sharpened(Recurrent(SIZE), seed=0))
    assert reason(adapter_of(model)) is None
    wrong = adapter_of(model, spoilt=replaced("step", carrying_something_else))
    assert "are carried on differently than read at once" in str(reason(wrong))


class NothingToCarry(nn.Module):
    """Its state says only that something was read: what it writes depends on the last token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, SIZE)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.embed(tokens), torch.ones(len(tokens), 1)


def test_a_state_that_holds_nothing_is_no_state() -> None:
    assert "does not carry what was read" in str(reason(adapter_of(NothingToCarry())))


class Growing(nn.Module):
    """Its state is all that was read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(SIZE, 6), nn.Linear(6, SIZE)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        features = self.embed(tokens)
        seen = features if state is None else torch.cat([state, features], dim=1)
        return self.out(seen.cumsum(dim=1)[:, -tokens.shape[1] :]), seen


def test_states_that_grow_are_tried_with_rows_of_one_length_only_if_asked_for() -> None:
    adapter = adapter_of(sharpened(Growing(), seed=0))
    assert reason(adapter, lengths=False) is None
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        reason(adapter)


def test_a_model_that_was_never_tried_with_a_second_token_is_tried_with_none() -> None:
    adapter = adapter_of(sharpened(Recurrent(SIZE), seed=0))
    with evaluating(adapter.module):
        assert difference_in_parts(adapter, adapter.at_once, PROMPT, [[], []]) is None
        assert difference_in_parts(adapter, adapter.at_once, PROMPT, [[5], [6]]) is None


def test_what_counts_as_the_same_grows_with_precision_spread_and_noise() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0, 0.0]])
    single, half = (SameLogits(torch.finfo(kind).eps) for kind in (torch.float32, torch.bfloat16))
    assert single.limit(logits) == pytest.approx(3e-4, rel=0.01)
    assert half.limit(logits) == pytest.approx((16 * 3 + 4 * 4) * 2**-7, rel=0.01)
    assert SameLogits(1e-7, noise=0.1).limit(logits) == pytest.approx(0.4, rel=0.01)
    assert single(logits + 2e-4, logits)
    assert not single(logits + torch.tensor([[4e-4, 0.0, 0.0, 0.0]]), logits)
    assert not single(logits, logits[:, :3])


def test_whole_numbers_of_a_state_must_be_equal() -> None:
    same = SameLogits(1e-7)
    assert same.tensors(torch.tensor([7]), torch.tensor([7]))
    assert not same.tensors(torch.tensor([7]), torch.tensor([8]))
    assert same.tensors(torch.tensor([7.0]), torch.tensor([7.0001]))
    assert same.tensors(torch.empty(0), torch.empty(0))
