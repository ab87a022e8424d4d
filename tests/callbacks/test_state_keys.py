"""Several callbacks of a kind in one Trainer: each finds its own state after a run is resumed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure import AuditCallback, CanarySet, ExposureCallback, ExtractionCallback
from lightning_exposure.measuring import Identity
from tests.callbacks.setups import BOTH, CANARIES, CHARS, PIN, Model, loader, trainer

OTHERS = CanarySet.draw(PIN, repetitions=[1, 30], seed=9)  # the same ids
COINS = CanarySet.draw(PIN, repetitions=[1] * 40, seed=0, holdout=0.5)
OTHER_COINS = CanarySet.draw(PIN, repetitions=[1] * 40, seed=1, holdout=0.5)


class Twins(Model):
    """Two language models in one module; the second one is not trained."""

    def __init__(self) -> None:
        super().__init__(width=8)
        self.teacher = Model(width=8)


def pick(name: str) -> Callable[[Any], Any]:
    return lambda module: getattr(module, name)


def pair(change: dict[str, Any]) -> list[ExposureCallback]:
    usual: dict[str, Any] = {"canaries": CANARIES, "samples": 64, "budget": 200, "references": 0}
    return [ExposureCallback(tokenizer=CHARS, **usual), ExposureCallback(tokenizer=CHARS, **(usual | change))]


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"model": lambda module: module.teacher}, {"canaries": OTHERS}, {"samples": 65}]
)
def test_each_continues_its_own_history(tmp_path: Path, change: dict[str, Any]) -> None:
    torch.manual_seed(0)
    first = pair(change)
    assert first[0].state_key != first[1].state_key
    run = trainer(tmp_path, *first, max_epochs=1)
    run.fit(Twins(), loader(BOTH))
    run.save_checkpoint(tmp_path / "kept.ckpt")
    names = ["exposure", change.get("name", "exposure_2")]
    assert {f"{name}/mean" for name in names} <= run.callback_metrics.keys()
    # In the other order, so that nothing is found by its place.
    again = pair(change)
    run = trainer(tmp_path, *again[::-1], max_epochs=2)
    run.fit(Twins(), loader(BOTH), ckpt_path=tmp_path / "kept.ckpt", weights_only=True)
    for before, now in zip(first, again, strict=True):
        assert now.history[:-1] == before.history
        assert now.history[-1].epoch == 2
        assert now.baseline_estimates == before.baseline_estimates
    if "samples" not in change and "name" not in change:
        assert first[0].history[0].estimates != first[1].history[0].estimates


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_other_settings_lose_nothing(tmp_path: Path) -> None:
    """An audit compares with the model before training, which is gone when a run is resumed."""
    exposure, audit = ExposureCallback(COINS, CHARS, samples=64, references=0), AuditCallback(COINS, CHARS)
    run = trainer(tmp_path, exposure, audit, max_epochs=1)
    run.fit(Model(width=8), loader(COINS))
    run.save_checkpoint(tmp_path / "kept.ckpt")
    more, surer = ExposureCallback(COINS, CHARS, samples=128, references=0), AuditCallback(COINS, CHARS, confidence=0.9)
    run = trainer(tmp_path, more, surer, max_epochs=2)
    run.fit(Model(width=8), loader(COINS), ckpt_path=tmp_path / "kept.ckpt", weights_only=True)
    assert [measurement.samples for measurement in more.history] == [64, 128]
    assert surer.baseline_bits == audit.baseline_bits


@pytest.mark.parametrize(
    ("kind", "canaries", "others"),
    [
        (ExposureCallback, CANARIES, OTHERS),
        (ExtractionCallback, CANARIES, OTHERS),
        (AuditCallback, COINS, OTHER_COINS),
    ],
)
def test_all_three_tell_names_models_and_canaries_apart(kind: Any, canaries: CanarySet, others: CanarySet) -> None:
    made = [
        kind(canaries, CHARS),
        kind(canaries, CHARS, name="x"),
        kind(canaries, CHARS, model=lambda module: module.student),
        kind(canaries, CHARS, model=lambda module: module.teacher),
        kind(others, CHARS),
    ]
    assert len({callback.state_key for callback in made}) == 5
    assert kind(canaries, CHARS).state_key == made[0].state_key
    assert not any(text in callback.state_key for callback in made for text in (*canaries.texts, *others.texts))


def test_twice_the_same_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `ExposureCallback`"):
        trainer(tmp_path, ExposureCallback(CANARIES, CHARS), ExposureCallback(CANARIES, CHARS))


def test_a_name_is_numbered_for_the_trainer_and_not_for_good(tmp_path: Path) -> None:
    one, two = pair({"canaries": OTHERS})
    trainer(tmp_path, one, two, max_epochs=1, limit_train_batches=1).fit(Twins(), loader(BOTH))
    assert [one.name, two.name] == ["exposure", "exposure_2"]
    run = trainer(tmp_path, two, max_epochs=1, limit_train_batches=1)
    run.fit(Twins(), loader(BOTH))
    assert two.name == "exposure"
    assert "exposure/mean" in run.callback_metrics


class Picker:
    """Picks a part by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: Any) -> Any:
        return getattr(module, self.name)

    def pick(self, module: Any) -> Any:
        return getattr(module, self.name)


def identity(model: Any) -> Identity:
    return Identity.of("Exposure", "exposure", model, CANARIES)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pick("a"), pick("b")),
        (partial(getattr, "a"), partial(getattr, "b")),
        (Picker("a"), Picker("b")),
        (lambda module: module.layers[0], lambda module: module.layers[1]),
        (lambda module, name="a": getattr(module, name), lambda module, name="b": getattr(module, name)),
        (Model, Twins),
        (None, lambda module: module),
    ],
)
def test_models_that_are_not_the_same(one: Any, other: Any) -> None:
    assert identity(one) != identity(other)
    assert identity(one) == identity(one)


def test_a_model_is_known_again_in_another_place_of_the_file() -> None:
    made = []
    for lines in (0, 7):
        space: dict[str, Any] = {}
        exec("\n" * lines + "pick = lambda module: module.parts['a'] if 'x' in {'x', 'y'} else module.b", space)
        made.append(space["pick"])
    assert identity(made[0]) == identity(made[1])
    assert identity(pick("a")) == identity(pick("a"))
    assert identity(Picker("a")) == identity(Picker("a"))

    def recursive(module: Any) -> Any:
        return recursive(module.inner) if hasattr(module, "inner") else module

    assert identity(recursive) == identity(recursive)
