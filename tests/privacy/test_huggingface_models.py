"""Hugging Face models as they are, given nothing but tokens: clipped as in a loop, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from tests.privacy.huggingface_models import (
    FAMILIES,
    deberta,
    logits_of,
    mamba,
    opt,
    texts,
    transformers,
)
from tests.privacy.models import BATCH, ROWS, SIZE, TIME, made, tokens
from tests.privacy.per_example import assert_clips_like_a_loop, in_one_pass


def loss(model: Any, ids: Tensor) -> Tensor:
    logits = logits_of(model, ids)
    return (logits.log_softmax(-1)[..., 1] + (logits * logits.detach().cos()).mean(-1)).sum() / len(ids)


@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)
def test_a_model_is_clipped_as_in_a_loop(make: Callable[[], Any]) -> None:
    # Many of them normalize in single precision, whatever they are given.
    assert_clips_like_a_loop(made(make).train(), texts(), loss, tolerance=2e-5)


def test_it_is_shown_what_it_is_shown_without_privacy() -> None:
    model = made(FAMILIES["BERT"]).train()
    plain = logits_of(model, texts())
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(len(texts()))
        assert torch.equal(logits_of(model, texts()), plain)


def test_a_bias_of_attention_for_pairs_of_steps_is_refused_by_name_and_can_be_frozen() -> None:
    sizes = {"vocab_size": 23, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    model = made(lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, dropout_rate=0.0)))
    with pytest.raises(ModelError, match=r"relative_attention_bias' \(Embedding\).*\(6, 6\).*: freeze that table"):
        in_one_pass(model, texts(), 1.0, loss)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("relative_attention_bias" not in name)
    assert_clips_like_a_loop(model, texts(), loss, tolerance=2e-5)


# DeBERTa's own
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (opt, r"final_layer_norm' \(LayerNorm\): its inputs have the shape \(30, 16\)"),
        (deberta, r"pos_key_proj' \(Linear\): its inputs have the shape \(1, 32, 16\)"),
        (mamba, r"mixer' \(MambaMixer\): has parameters of its own beside its layers, 'A_log', 'D'"),
    ],
)
def test_others_are_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        in_one_pass(made(make).train(), texts(), 1.0, loss)


# ---- tables that all examples look up at once ---------------------------------------------------------------------


class Positioned(nn.Module):
    """Adds to every step what is known about its place."""

    def __init__(self, positions: nn.Module | None = None, taken: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, SIZE)
        self.positions = positions or nn.Embedding(TIME, SIZE)
        self.out = nn.Linear(SIZE, 3)
        self.taken = taken

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])[None]
        hidden: Tensor = self.out((self.words(ids) * (1 + self.taken(self.positions(places)))).tanh())
        return hidden


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "broadcast": lambda found: found,
    "broadcast without the first dimension": lambda found: found.squeeze(0),
    "in place": lambda found: found.mul_(2),
    "after something": lambda found: found.sin().cumsum(1),
}


@pytest.mark.parametrize("taken", WAYS.values(), ids=WAYS)
def test_what_all_examples_look_up_is_every_examples_own(taken: Callable[[Tensor], Tensor]) -> None:
    assert_clips_like_a_loop(made(lambda: Positioned(taken=taken)), tokens())


def test_in_a_batch_of_one_example_nothing_is_expanded() -> None:
    model = made(Positioned)
    shapes: list[torch.Size] = []
    model.positions.register_forward_hook(lambda layer, inputs, outputs: shapes.append(outputs.shape))  # type: ignore[union-attr]
    for examples in (1, BATCH):
        in_one_pass(model, tokens()[:examples], 1.0)
    assert shapes == [(1, TIME, SIZE), (BATCH, TIME, SIZE)]


def test_taking_one_of_them_for_all_is_refused() -> None:
    model = made(lambda: Positioned(taken=lambda found: found[0]))
    with pytest.raises(ModelError, match=r"'positions' \(Embedding\): .* for one of them alone.* not x \+ pos"):
        in_one_pass(model, tokens(), 1.0)


def test_ids_without_a_dimension_for_examples_are_refused() -> None:
    class Flat(Positioned):
        def forward(self, ids: Tensor) -> Tensor:
            hidden: Tensor = self.out(self.words(ids) + self.positions(torch.arange(TIME)))
            return hidden

    with pytest.raises(ModelError, match=r"'positions' \(Embedding\): its inputs have the shape \(6,\).* \(1, time\)"):
        in_one_pass(made(Flat), tokens(), 1.0)


# ---- tables with a forward of their own ---------------------------------------------------------------------------


class Scaled(nn.Embedding):
    """As in Gemma: times a number in a buffer."""

    def __init__(self, rows: int = TIME, size: int = SIZE, **options: Any) -> None:
        super().__init__(rows, size, **options)
        self.register_buffer("scale", torch.tensor(2.5), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = super().forward(input) * self.scale.to(self.weight.dtype)
        return found


class Shifted(nn.Embedding):
    """As in OPT: makes its indices itself, of what else it is given; looks up twice."""

    def __init__(self) -> None:
        super().__init__(TIME + 2, SIZE, padding_idx=3)

    def forward(self, places: Tensor, shift: int = 2) -> Tensor:
        return super().forward(places + shift).sin() + functional.embedding(places, weight=self.weight).to(self.weight)


@pytest.mark.parametrize("make", [Scaled, Shifted, lambda: Scaled(padding_idx=-1)])
def test_a_table_may_have_a_forward_of_its_own(make: Callable[[], nn.Module]) -> None:
    assert_clips_like_a_loop(made(lambda: Positioned(make())), tokens())


def test_such_a_table_may_be_that_of_the_last_layer_too() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(Scaled(ROWS), nn.Tanh(), nn.Linear(SIZE, ROWS))
        model[2].weight = model[0].weight
        return model

    assert_clips_like_a_loop(made(make), tokens())


class Penalized(Scaled):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / self.weight.norm()


class Listed(Scaled):
    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(input, torch.cat([self.weight, self.weight]))


class Renormalized(Scaled):
    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(input, self.weight, max_norm=1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Penalized, r"\(Penalized\): its forward does something else with its table than to look it up \(norm\)"),
        (Listed, r"\(Listed\): its forward does something else with its table than to look it up \(cat\)"),
        (Renormalized, r"\(Renormalized\): looks up with max_norm"),
    ],
)
def test_a_table_that_is_not_only_looked_up_is_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        in_one_pass(made(lambda: Positioned(make())), tokens(), 1.0)


def test_a_layer_that_only_holds_a_table_for_others_need_not_be_called() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.words = nn.Embedding(ROWS, SIZE), nn.Embedding(ROWS, SIZE)
            self.words.weight = self.shared.weight
            self.out = nn.Linear(SIZE, 3)

        def forward(self, ids: Tensor) -> Tensor:
            hidden: Tensor = self.out(self.words(ids))
            return hidden

    assert_clips_like_a_loop(made(Holding), tokens())
