"""`ExposureLoop`: a loop written by hand has what a Trainer has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.errors import ArgumentError, FitError
from lightning_exposure.measuring import Alone, AuditWarning, ExposureLoop
from lightning_exposure.report import RunRecord, run_record, weights_sha256, write_report
from lightning_exposure.report.pages import run as html
from lightning_exposure.tokenization import CharTokenizer

PIN = SecretFormat("pin ##")
CANARIES = CanarySet.draw(PIN, repetitions=[1, 20], seed=0)
TOKENIZER = CharTokenizer.from_text("pin 0123456789")
QUICK: dict[str, Any] = {"budget": 500, "references": 16, "verbose": False}


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "pictures", lambda record: [])


def new_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 14))


def train(model: torch.nn.Module, exposure: Any = None, epochs: int = 2, canaries: CanarySet = CANARIES) -> str:
    """Weights after a few steps, with dropout; what they are as a hash."""
    texts = [canary.text for canary in canaries for _ in range(canary.copies)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    for _ in range(epochs):
        for text in texts:
            row = torch.tensor([TOKENIZER.encode(text)])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(row[:, :-1])[0], row[0, 1:]).backward()
            optimizer.step()
            if exposure is not None:
                exposure.after_step()
        if exposure is not None:
            exposure.after_epoch(train_loss=1.5)
    return weights_sha256(model)


def test_the_same_weights_with_and_without_it(tmp_path: Path) -> None:
    model = new_model()
    with ExposureLoop(model, CANARIES, TOKENIZER, report=tmp_path, **QUICK) as exposure:
        with_it = train(model, exposure)
    assert with_it == train(new_model())


def test_everything_is_logged_and_reported(tmp_path: Path) -> None:
    logged: dict[int, set[str]] = {}
    around = Alone(log=lambda metrics, step: logged.setdefault(step, set()).update(metrics))
    model = new_model()
    with ExposureLoop(model, CANARIES, TOKENIZER, around, every_n_steps=10, report=tmp_path, **QUICK) as exposure:
        train(model, exposure)
    assert sorted(logged) == [10, 20, 21, 30, 40, 42]
    assert {"exposure/max", "exposure_low/pin-20x", "extraction/extracted"} <= logged[42]
    record = RunRecord.load(tmp_path)
    assert [measurement.step for measurement in record.history] == [10, 20, 21, 30, 40, 42]
    assert [measurement.epoch for measurement in record.history] == [1, 1, 1, 2, 2, 2]
    assert record.history[-1].train_loss == 1.5
    assert record.steps == 42
    assert record.extractions
    assert record.model == {"class": "Sequential", "parameters": 238, "sha256": weights_sha256(model)}
    again = write_report(exposure, tmp_path / "again")
    assert sorted(os.listdir(again.parent)) == ["exposure.json", "model-card.md", "report.html"]


def test_it_audits_where_coins_were_tossed() -> None:
    canaries = CanarySet.draw(PIN, repetitions=[1] * 12, seed=0, holdout=0.5)
    model = new_model()
    with ExposureLoop(model, canaries, TOKENIZER, attack=False, **QUICK) as loop:
        train(model, loop, canaries=canaries)
    assert loop.run.result is not None
    assert run_record(loop).audit is not None
    assert loop.run.extractions == {}


def test_an_audit_of_too_few_canaries_says_so_before_training() -> None:
    few = CanarySet.draw(PIN, repetitions=[1] * 4, seed=0, holdout=0.5)
    with pytest.warns(AuditWarning, match="even if every guess is right"):
        ExposureLoop(new_model(), few, TOKENIZER, attack=False, **QUICK).__enter__()


def test_an_error_in_the_loop_is_reported_and_goes_on_its_way(tmp_path: Path) -> None:
    def fails() -> None:
        model = new_model()
        with ExposureLoop(model, CANARIES, TOKENIZER, report=tmp_path, **QUICK) as exposure:
            train(model, exposure, epochs=1)
            raise ZeroDivisionError("my pin is 1234")

    with pytest.raises(ZeroDivisionError):
        fails()
    assert "1234" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    record = RunRecord.load(tmp_path)
    assert record.interrupted == "ZeroDivisionError"
    assert len(record.history) == 1
    assert not record.extractions


def test_an_epoch_without_steps_is_refused() -> None:
    with (
        pytest.raises(FitError, match="after_epoch was called after 0 steps"),
        ExposureLoop(new_model(), CANARIES, TOKENIZER, **QUICK) as exposure,
    ):
        exposure.after_epoch()


def test_a_directory_that_is_a_file_is_refused_before_training(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ArgumentError, match=r"report is .*; expected a directory and not a file"):
        ExposureLoop(new_model(), CANARIES, TOKENIZER, report=file, **QUICK).__enter__()


@pytest.mark.parametrize(("name", "value"), [("attack", 3), ("every_n_epochs", -1), ("delta", 2.0)])
def test_arguments_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=name):
        ExposureLoop(new_model(), CANARIES, TOKENIZER, **{name: value})


def test_a_wrapped_model_is_measured_without_its_wrapper() -> None:
    model = new_model()
    assert ExposureLoop(torch.nn.DataParallel(model), CANARIES, TOKENIZER).model is model
