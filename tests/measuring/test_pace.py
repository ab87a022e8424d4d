"""`max_share`: what a measurement may cost, decided from numbers alone, and how a training run goes on with it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger

from lightning_exposure import ExposureCallback, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError
from lightning_exposure.measuring import is_last, quiet, training_clock
from lightning_exposure.measuring._pace import NEVER_CUT, Caps, Effort, Pace, caps_for
from lightning_exposure.report.record import Measurement
from tests.callbacks.setups import BOTH, CANARIES, CHARS, PIN, Model, loader, trainer

ASKED = Caps("auto", samples=4096, budget=100_000)
SLOW = [Effort(expansions=80_000, seconds=160.0)]  # 500 expansions a second


def caps(training: float, *, asked: Caps = ASKED, efforts: Any = SLOW, depths: Any = (10,), **options: Any) -> Caps:
    return caps_for(asked, depths, efforts, training_seconds=training, **({"max_share": 0.05} | options))


class TestTheDecision:
    def test_nothing_is_cut_before_the_speed_is_known(self) -> None:
        assert caps(0.0, efforts=[]) == ASKED

    def test_what_fits_is_not_cut(self) -> None:
        assert not caps(3200.0).cut
        assert caps(3199.0).cut

    def test_below_five_seconds_nothing_is_cut(self) -> None:
        fast = [Effort(expansions=80_000, seconds=NEVER_CUT)]
        assert not caps(0.0, efforts=fast).cut
        assert caps(0.0, efforts=[Effort(80_000, NEVER_CUT + 0.1)]).cut

    def test_the_last_one_and_one_without_a_share_are_not_cut(self) -> None:
        assert caps(0.0).cut
        assert not caps(0.0, last=True).cut
        assert not caps(0.0, max_share=None).cut

    @given(
        training=st.floats(0, 1e5), seconds=st.floats(0.1, 1e4), expansions=st.integers(10_000, 10**7),
        depths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
        method=st.sampled_from(["auto", "exact", "importance", "sampling", "skewnormal"]),
    )  # fmt: skip
    def test_a_cut_one_cannot_take_longer_than_it_may(
        self, training: float, seconds: float, expansions: int, depths: list[int], method: str
    ) -> None:
        asked = Caps(method, 4096, 100_000)
        found = caps(training, asked=asked, efforts=[Effort(expansions, seconds)], depths=depths)
        allowed = max(NEVER_CUT, 0.05 * training)
        if not found.cut:
            assert (found.method, found.samples, found.budget) == (method, 4096, 100_000)
            return
        assert seconds > allowed
        assert found.samples <= 4096
        assert found.budget <= 100_000
        counts = found.budget * len(depths) if found.method == "auto" else 0
        # No fewer than 64 walks and 100 expansions: less would say nothing at all.
        least = 64 * sum(depths) + 100 * len(depths)
        assert found.samples * sum(depths) + counts <= max(least, allowed * expansions / seconds + least)

    def test_an_exact_count_becomes_an_estimate(self) -> None:
        found = caps(400.0, asked=Caps("exact", 4096, 100_000))
        assert (found.method, found.cut) == ("auto", True)

    def test_methods_without_a_count_spend_all_on_walks(self) -> None:
        assert caps(400.0, asked=Caps("importance", 4096, 100_000)).samples == 1000
        assert caps(400.0).samples == 500

    def test_it_expects_the_most_that_was_needed_and_not_what_was_cut(self) -> None:
        cheap_since = [*SLOW, Effort(1_000, 2.0)]
        assert caps(400.0, efforts=cheap_since).cut
        assert caps(400.0, efforts=[*SLOW, Effort(10_000, 20.0, cut=True)]).cut
        # Nothing but cut ones is known, as after a resumption: as much as it may take at all.
        assert caps(400.0, efforts=[Effort(10_000, 20.0, cut=True)]).expected == pytest.approx(140_960 / 500)

    def test_a_faster_model_gets_more(self) -> None:
        faster = [*SLOW, Effort(100_000, 20.0)]
        assert caps(1000.0, efforts=faster).samples > caps(1000.0).samples


KNOWN: dict[str, Any] = {
    "epochs": 3, "max_epochs": 10, "steps": 30, "max_steps": -1, "epoch_ended": True,
}  # fmt: skip


class TestTheLastOne:
    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({}, False),
            ({"epochs": 10}, True),
            ({"epochs": 9}, False),
            ({"epochs": 10, "epoch_ended": False}, False),
            ({"max_steps": 30}, True),
            ({"max_steps": 31}, False),
            ({"max_epochs": -1}, False),
            ({"max_epochs": None}, False),
            ({"stopping": True}, True),
        ],
    )
    def test_as_far_as_it_is_known(self, changed: dict[str, Any], expected: bool) -> None:
        assert is_last(**(KNOWN | changed)) is expected


class TestClocks:
    def test_training_time_begins_again_with_every_measurement(self) -> None:
        pace = Pace(0.05)
        pace.begin(100.0)
        pace.done(Effort(80_000, 160.0), 100.0)
        assert not pace.caps(ASKED, [10], 3300.0, last=False).cut
        pace.done(Effort(80_000, 160.0), 3300.0)
        assert pace.caps(ASKED, [10], 3300.0, last=False).cut

    def test_the_clock_of_the_training_stands_still_during_measurements(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, now = Model(), [1000.0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])
        before = training_clock()
        now[0] += 3.0
        with quiet(model):
            now[0] += 50.0
            with quiet(model):
                now[0] += 50.0
            now[0] += 50.0
            assert training_clock() - before == pytest.approx(3.0)
        now[0] += 4.0
        assert training_clock() - before == pytest.approx(7.0)


def slowly(callback: ExposureCallback, seconds: float = 100.0) -> ExposureCallback:
    """Every measurement seems to take so many seconds."""
    ticks = itertools.count(0.0, seconds)
    callback._monitor.timer = lambda: next(ticks)
    return callback


def again(measurement: Measurement, model: Model) -> dict[str, Any]:
    """The same numbers, from nothing but the record and the weights."""
    found = {}
    for format, canaries in BOTH.by_format().items():
        tree = SecretTree(model, format, CHARS)
        for estimate in measure_exposure(tree, [canary.text for canary in canaries], **measurement.arguments):
            found[next(canary.id for canary in canaries if canary.text == estimate.secret)] = estimate
    return found


class Weights(L.Callback):
    """Keeps the weights of every epoch."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.kept.append({name: value.clone() for name, value in pl_module.state_dict().items()})


def fit(folder: Path, *callbacks: L.Callback, **options: Any) -> tuple[L.Trainer, Model]:
    L.seed_everything(1, verbose=False)
    model = Model()
    run = trainer(folder, *callbacks, **options)
    run.fit(model, loader(BOTH))
    return run, model


class TestInATraining:
    def test_all_but_the_first_and_the_last_are_cut_and_all_can_be_computed_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        callback, weights = slowly(ExposureCallback(BOTH, CHARS, references=0)), Weights()
        logger = CSVLogger(tmp_path)
        run, _ = fit(tmp_path, callback, weights, max_epochs=3, logger=logger)
        assert [measurement.cut for measurement in callback.history] == [True, True, False]
        first, _, last = callback.history
        assert first.samples is not None
        assert first.budget is not None
        assert first.samples < 4096
        assert first.budget < 100_000
        assert (last.samples, last.budget, last.precision, last.seed) == (4096, 100_000, 0.25, 0)
        for measurement, kept in zip(callback.history, weights.kept, strict=True):
            model = Model()
            model.load_state_dict(kept)
            assert again(measurement, model) == measurement.estimates
        assert capsys.readouterr().err.count("exposure: a measurement in full is expected to take 100 s") == 1
        assert run.callback_metrics["exposure/cut"] == 0.0
        logger.save()
        rows = (Path(logger.log_dir) / "metrics.csv").read_text()
        assert "exposure/cut" in rows

    def test_nothing_is_cut_by_default_here_and_no_clock_has_a_say(self, tmp_path: Path) -> None:
        runs = [ExposureCallback(BOTH, CHARS, references=0, **options) for options in ({}, {"max_share": None})]
        runs.append(slowly(ExposureCallback(BOTH, CHARS, references=0), seconds=0.001))
        for callback in runs:
            run, _ = fit(tmp_path, callback, max_epochs=2)
            assert "exposure/cut" not in run.callback_metrics
        found = [[measurement.estimates for measurement in callback.history] for callback in runs]
        assert found[0] == found[1] == found[2]
        assert not any(measurement.cut for callback in runs for measurement in callback.history)

    def test_without_a_share_nothing_is_ever_cut(self, tmp_path: Path) -> None:
        callback = slowly(ExposureCallback(BOTH, CHARS, max_share=None, references=0))
        fit(tmp_path, callback, max_epochs=2)
        assert [measurement.cut for measurement in callback.history] == [False, False]

    def test_an_end_that_nobody_knew_of_is_measured_again_in_full(self, tmp_path: Path) -> None:
        callback = slowly(ExposureCallback(BOTH, CHARS, method="exact", references=0))
        stopping = EarlyStopping("exposure/mean", mode="min", patience=0, check_on_train_epoch_end=True)
        logger = CSVLogger(tmp_path)
        run, model = fit(tmp_path, callback, stopping, max_epochs=9, logger=logger)
        assert run.current_epoch < 9
        *before, last = callback.history
        assert all(measurement.cut and measurement.method == "auto" for measurement in before)
        assert not last.cut
        assert last.epoch == run.current_epoch == len(callback.history)
        assert last.train_loss is not None
        assert again(last, model) == last.estimates
        assert {estimate.method for estimate in last.estimates.values()} == {"exact"}
        # State and metrics are those of the full one.
        restored = ExposureCallback(BOTH, CHARS, method="exact")
        restored.load_state_dict(callback.state_dict())
        assert restored.history == callback.history
        for canary in BOTH:
            assert run.callback_metrics[f"exposure/{canary.id}"] == pytest.approx(last.estimates[canary.id].bits)
        assert run.callback_metrics["exposure/cut"] == 0.0

    def test_steps_that_end_between_two_measurements(self, tmp_path: Path) -> None:
        callback = slowly(ExposureCallback(CANARIES, CHARS, every_n_epochs=0, every_n_steps=4, references=0))
        run, _ = fit(tmp_path, callback, max_epochs=1)
        assert run.global_step % 4
        steps = [measurement.step for measurement in callback.history]
        assert steps == [*range(4, run.global_step, 4), run.global_step]
        assert [measurement.cut for measurement in callback.history] == [True] * (len(steps) - 1) + [False]
        assert callback.history[-1].epoch == 1

    def test_the_weights_are_the_same_whether_it_is_cut_or_not(self, tmp_path: Path) -> None:
        found = []
        for callbacks in (
            [],
            [slowly(ExposureCallback(BOTH, CHARS, every_n_steps=3))],
            [ExposureCallback(BOTH, CHARS)],
        ):
            _, model = fit(tmp_path, *callbacks, max_epochs=2)
            found.append(model.state_dict())
        for other in found[1:]:
            assert all(torch.equal(found[0][name], other[name]) for name in other)

    def test_a_resumed_run_knows_the_speed(self, tmp_path: Path) -> None:
        first = slowly(ExposureCallback(BOTH, CHARS, references=0))
        run, _ = fit(tmp_path, first, max_epochs=2)
        run.save_checkpoint(tmp_path / "last.ckpt")
        second = slowly(ExposureCallback(BOTH, CHARS, references=0))
        trainer(tmp_path, second, max_epochs=4).fit(
            Model(), loader(BOTH), ckpt_path=tmp_path / "last.ckpt", weights_only=True
        )
        assert [measurement.cut for measurement in second.history] == [True, False, True, False]


@pytest.mark.parametrize("share", [0, -0.1, float("nan"), float("inf")])
def test_a_share_out_of_range(share: float) -> None:
    with pytest.raises(ArgumentError, match=r"max_share is .*; expected a number above 0"):
        ExposureCallback(CANARIES, CHARS, max_share=share)


def test_precision_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="precision is 0; expected a number above 0"):
        ExposureCallback(CANARIES, CHARS, precision=0)
    callback = ExposureCallback(CANARIES, CHARS, precision=2.0, references=0)
    assert callback.settings["precision"] == 2.0
    assert callback.settings["max_share"] == 0.05
    _, model = fit(tmp_path, callback, max_epochs=1)
    (measurement,) = callback.history
    by_hand = measure_exposure(SecretTree(model, PIN, CHARS), list(CANARIES.texts), precision=2.0)
    assert list(measurement.estimates.values()) == by_hand
    assert measurement.arguments["precision"] == 2.0
