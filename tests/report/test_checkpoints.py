"""The checkpoint with the lowest loss among those that are not too exposed."""

from __future__ import annotations

import json
from pathlib import Path

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_exposure import Canary, CanarySet, ExposureCallback, ExposureEstimate, SecretFormat
from lightning_exposure.errors import ArgumentError, MissingFileError, NoCheckpointError
from lightning_exposure.report import Measurement, RunRecord, best_checkpoint, measured_checkpoints, run_record
from lightning_exposure.report.figures.loss_against_exposure import loss_against_exposure
from tests.callbacks.setups import CANARIES, CHARS, Model, loader, trainer

PIN = SecretFormat("pin ####")
HERE = CanarySet(
    [Canary("a", "pin 1234", PIN, 4), Canary("b", "pin 5555", PIN, 1), Canary("control", "pin 0000", PIN, 0)]
)


def measurement(step: int, loss: float | None, a: tuple[float, float], method: str = "importance") -> Measurement:
    def estimate(text: str, low: float, high: float) -> ExposureEstimate:
        return ExposureEstimate(text, low, low, high, method, 9.0, 3.0, 13.3, False, 0.95, 9)

    estimates = {"a": estimate("pin 1234", *a), "b": estimate("pin 5555", 1.0, 2.0)}
    estimates["control"] = estimate("pin 0000", 13.0, 13.0)
    return Measurement(step // 10, step, None, loss, 1.0, estimates)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four epochs; the loss falls, and the exposure rises."""
    record = RunRecord(HERE)
    numbers = ((10, 3.0, (1.0, 3.0)), (20, 2.0, (8.0, 9.5)), (30, 1.5, (9.0, 10.5)), (40, 1.0, (12.0, 12.5)))
    record.history = [measurement(*each) for each in numbers]
    record.save(tmp_path)
    for step in (10, 20, 30, 40):
        target = tmp_path / "deep" / f"any-name-{step}.ckpt"
        target.parent.mkdir(exist_ok=True)
        torch.save({"global_step": step, "state_dict": {}}, target)
    return tmp_path


def test_the_upper_end_decides_and_controls_do_not(run: Path) -> None:
    chosen = best_checkpoint(run, max_bits=10)
    assert (chosen.path.name, chosen.step, chosen.val_loss) == ("any-name-20.ckpt", 20, 2.0)
    assert (chosen.low, chosen.high, chosen.canary) == (8.0, 9.5, "a")
    assert best_checkpoint(run, max_bits=10.5).step == 30
    assert best_checkpoint(run / "exposure.json", max_bits=13).step == 40
    record = RunRecord.load(run)
    assert best_checkpoint(record, max_bits=10, checkpoints=run / "deep") == chosen


def test_none_within_says_the_smallest(run: Path) -> None:
    with pytest.raises(
        NoCheckpointError, match=r"none of 4 checkpoints is within it; expected at least 3.00.*'a' after"
    ):
        best_checkpoint(run, max_bits=2.5)


def test_checkpoints_that_were_not_judged_do_not_count(run: Path) -> None:
    record = RunRecord.load(run)
    record.history[1] = measurement(20, None, (8.0, 9.5))
    record.history[2] = measurement(30, float("nan"), (8.0, 9.5))
    record.history[3] = measurement(40, 1.0, (8.0, 9.5), method="skewnormal")  # an extrapolation defends nothing
    record.save(run)
    assert best_checkpoint(run, max_bits=10).step == 10


def test_checkpoints_of_transformers_and_those_that_only_their_name_tells(run: Path) -> None:
    (run / "deep" / "any-name-20.ckpt").unlink()
    state = run / "checkpoint-20" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"global_step": 20}), encoding="utf-8")
    assert best_checkpoint(run, max_bits=10).path == state.parent
    state.unlink()
    (run / "epoch=1-step=20.ckpt").write_bytes(b"of another library")
    assert best_checkpoint(run, max_bits=10).path.name == "epoch=1-step=20.ckpt"


@pytest.mark.parametrize("max_bits", [-1, float("nan"), "10"])
def test_a_limit_that_is_none(run: Path, max_bits: float) -> None:
    with pytest.raises(ArgumentError, match=r"max_bits is .*; expected"):
        best_checkpoint(run, max_bits=max_bits)


def test_what_is_missing_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="which does not exist; expected the directory of a run"):
        best_checkpoint(tmp_path / "nowhere", max_bits=1)
    record = RunRecord.load(run)
    with pytest.raises(ArgumentError, match="checkpoints is None, and run is a record"):
        best_checkpoint(record, max_bits=1)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(NoCheckpointError, match="holds no checkpoint"):
        best_checkpoint(record, max_bits=1, checkpoints=empty)
    record.history = [measurement(15, 2.0, (1.0, 2.0))]
    with pytest.raises(NoCheckpointError, match=r"after other steps \(10, 20, 30, 40\) than were measured \(15\)"):
        best_checkpoint(record, max_bits=1, checkpoints=run)
    record.history = []
    with pytest.raises(NoCheckpointError, match="run has no measurement"):
        best_checkpoint(record, max_bits=1, checkpoints=run)


def test_what_model_checkpoint_keeps_is_found(tmp_path: Path) -> None:
    L.seed_everything(3, verbose=False)
    exposure = ExposureCallback(CANARIES, CHARS, references=0)
    keeping = ModelCheckpoint(tmp_path / "kept", save_top_k=-1)
    fit = trainer(tmp_path, exposure, keeping, enable_checkpointing=True, max_epochs=2)
    fit.fit(Model(), loader(), loader(shuffle=False))
    run_record(fit).save(tmp_path)
    found = measured_checkpoints(tmp_path)
    assert [each.step for each in found] == [measurement.step for measurement in exposure.history]
    assert best_checkpoint(tmp_path, max_bits=13.2).val_loss == min(each.val_loss for each in found)


def test_the_figure_marks_the_choice(run: Path) -> None:
    found = measured_checkpoints(run)
    for theme in ("light", "dark"):
        (axes,) = loss_against_exposure(found, max_bits=10, theme=theme).axes  # type: ignore[arg-type]
        texts = [text.get_text() for text in axes.texts]
        assert "chosen" in texts
        assert "limit 10 bits" in texts
        assert axes.get_title(loc="left") == "Epoch 2: loss 2.000, at most 9.5 bits"
        (ring,) = [line for line in axes.lines if line.get_markersize() == 14]
        assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([9.5], [2.0])
    (axes,) = loss_against_exposure(found, max_bits=1).axes
    assert axes.get_title(loc="left") == "None of 4 checkpoints is within the limit"
    with pytest.raises(ArgumentError, match="checkpoints is empty"):
        loss_against_exposure([], max_bits=1)
