"""Clipping leaves no traces on the module, whatever happens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from tests.privacy.models import BATCH, ROWS, SIZE, TIME, Scale, Tied, made, tokens, vectors
from tests.privacy.per_example import in_one_pass, mean_of_squares


class Everything(nn.Module):
    """A layer of every sort that is listened to in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, SIZE)
        self.recurrent = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.scale = Scale()
        self.norm = nn.BatchNorm1d(TIME).requires_grad_(False).eval()
        self.head = nn.Linear(SIZE, ROWS)
        self.fails = False

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.scale(self.recurrent(self.embedding(ids))[0])))
        if self.fails:
            self.head(logits)
        return logits


def snapshot(module: nn.Module) -> list[Any]:
    """All that is kept on a module and its parts, besides the numbers."""
    parts = [
        {name: dict(value) if isinstance(value, dict) else value for name, value in vars(part).items()}
        for part in module.modules()
    ]
    return [*parts, [(parameter, parameter.requires_grad, vars(parameter)) for parameter in module.parameters()]]


def test_the_module_is_left_as_it_was() -> None:
    model = made(Everything)
    before = snapshot(model)
    clipping = Clipping(model, max_grad_norm=1.0)
    clipping.attach()
    clipping.attach()
    during = snapshot(model)
    assert during != before
    clipping.begin(BATCH)
    mean_of_squares(model, tokens()).backward()
    clipping.clipped_sum()
    assert snapshot(model) == during
    clipping.detach()
    clipping.detach()
    assert snapshot(model) == before


def test_the_module_is_left_as_it_was_after_an_error_in_forward() -> None:
    model = made(Everything)
    before = snapshot(model)
    model.fails = True
    with Clipping(model, max_grad_norm=1.0) as clipping:
        clipping.begin(BATCH)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(tokens())
        assert all(parameter.requires_grad for parameter in model.head.parameters())
    model.fails = False
    assert snapshot(model) == before


def test_an_interruption_from_the_keyboard_freezes_nothing() -> None:
    interrupts = True

    class Interrupted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if interrupts:
                raise KeyboardInterrupt
            return super().forward(input)

    model = made(lambda: Interrupted(SIZE, 3))
    with Clipping(model, max_grad_norm=1.0) as clipping:
        for interrupts in (True, False, True):
            clipping.begin(BATCH)
            if interrupts:
                with pytest.raises(KeyboardInterrupt):
                    model(vectors())
            else:
                mean_of_squares(model, vectors()).backward()
                assert all(total.any() for total in clipping.clipped_sum().values())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_deep_copy_is_clipped_by_itself() -> None:
    model = made(Everything)
    wanted, _ = in_one_pass(model, tokens(), 1.0)
    clipping = Clipping(model, max_grad_norm=1.0)
    clipping.attach()
    other, twin = copy.deepcopy((model, clipping))
    assert twin.module is other
    for one, its in ((model, clipping), (other, twin)):
        its.begin(BATCH)
        mean_of_squares(one, tokens()).backward()
        found = its.clipped_sum()
        for parameter, total in zip(one.parameters(), (wanted.get(p) for p in model.parameters()), strict=True):
            if total is not None:
                assert torch.equal(found[parameter], total)
    # Detaching one does not silence the other, and a copy of the module alone works too.
    alone = copy.deepcopy(model)
    clipping.detach()
    twin.begin(BATCH)
    mean_of_squares(other, tokens()).backward()
    assert len(twin.clipped_sum()) == len(wanted)
    mean_of_squares(alone, tokens()).backward()
    mean_of_squares(model, tokens()).backward()
    for one, parameter in zip(alone.parameters(), model.parameters(), strict=True):
        assert (one.grad is None) == (parameter.grad is None)


def test_a_module_is_clipped_by_one_at_a_time() -> None:
    model = made(Tied)
    with (
        Clipping(model, max_grad_norm=1.0),
        pytest.raises(ModelError, match="'embedding' is clipped already: detach the other"),
    ):
        Clipping(model, max_grad_norm=1.0).attach()
    with Clipping(model, max_grad_norm=1.0):
        pass
