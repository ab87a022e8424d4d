"""`Watch` by itself: what it compares in every step, what in the long run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps import watching
from lightning_exposure.privacy.steps.watching import Watch


def made(kind: Any = torch.optim.Adam) -> tuple[nn.Module, Any, Watch]:
    """A model half of which is frozen, after a step."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    optimizer = kind(model[1].parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer, Watch(model, optimizer)


def test_nothing_moves() -> None:
    model, _, watch = made()
    model(torch.randn(3, 4)).sum().backward()
    watch.check()
    watch.check(quick=True)
    assert watch.is_settled()


def test_a_step_is_settled_but_frozen_weights_are_not() -> None:
    model, optimizer, watch = made()
    optimizer.step()
    watch.settle_step()
    watch.check()
    model[0].weight.data[0, 0] += 1  # type: ignore[index, operator]
    watch.settle_step()
    with pytest.raises(FitError, match=r"moves them: 0\.weight"):
        watch.check()


def test_of_many_frozen_weights_a_change_is_seen_sooner_or_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_ALWAYS", 0)
    model, optimizer, watch = made()
    model[0].weight.data[0, 0] += 1  # type: ignore[index, operator]

    def steps() -> None:
        for _ in range(300):
            watch.check(quick=True)
            optimizer.step()
            watch.settle_step()

    with pytest.raises(FitError, match=r"moves them: 0\.weight"):
        steps()


@pytest.mark.parametrize("counted", [True, False])
def test_of_a_large_state_what_is_changed_again_and_again_is_seen(
    counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_ALWAYS", 0)
    model, optimizer, watch = made()
    state = optimizer.state[model[1].weight]["exp_avg"]  # type: ignore[index]
    seen = []

    def steps() -> None:
        for number in range(300):
            (state if counted else state.data).add_(1)
            seen.append(number)
            watch.check(quick=True)
            optimizer.step()
            watch.settle_step()

    with pytest.raises(FitError, match=r"What the optimizer remembers moved .*: exp_avg of 1\.weight"):
        steps()
    assert seen == [0] or not counted


def test_a_glance_looks_only_if_something_was_counted() -> None:
    model, _, watch = made()
    model[1].weight.data.add_(1)  # type: ignore[operator, union-attr]
    watch.glance("")
    with torch.no_grad():
        model[1].weight.add_(1)  # type: ignore[operator, arg-type]
    with pytest.raises(FitError, match="moved otherwise"):
        watch.glance("")


def test_what_is_allowed_may_move_and_nothing_before_it() -> None:
    model, _, watch = made()
    with watch.allowing():
        model[0].weight.data.add_(1)  # type: ignore[operator, union-attr]
        watch.check()
    watch.check()
    model[0].weight.data.add_(1)  # type: ignore[operator, union-attr]
    with pytest.raises(FitError, match=r"moves them: 0\.weight"), watch.allowing():
        pass


def test_parameters_that_come_and_go() -> None:
    model, _, watch = made()
    model.extra = nn.Linear(2, 2)
    with pytest.raises(FitError, match=r"extra\.weight, extra\.bias"):
        watch.check(quick=True)
    del model.extra
    watch.check()


def test_settings_of_the_optimizer() -> None:
    _, optimizer, watch = made()
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(FitError, match="settings of the optimizer"):
        watch.check_groups()
    watch.settle_groups()
    watch.check_groups()
