"""The gate in a real Trainer of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_exposure.errors import ArgumentError, GateError
from lightning_exposure.integrations import ExposureGateTrainerCallback, ExposureTrainerCallback
from lightning_exposure.measuring.gate import GateWarning
from lightning_exposure.report import run_record
from tests.integrations.setups import CANARIES, OFTEN, TOKENIZER, same_weights, trainer

LEARN = {"learning_rate": 0.03, "num_train_epochs": 8}
LIMIT = 5.5
"""Above what luck gives two canaries, and below the 6.6 bits of the format."""


def exposure() -> ExposureTrainerCallback:
    return ExposureTrainerCallback(CANARIES, TOKENIZER, attack=False, references=0, baseline=False)


def test_it_stops_and_a_checkpoint_is_there(tmp_path: Path) -> None:
    gate, measured = ExposureGateTrainerCallback(LIMIT), exposure()
    run = trainer(tmp_path, gate, measured, **LEARN)  # the gate stands first, and looks second all the same
    run.train()
    assert gate.answer == "exceeded"
    assert gate.stopped_at_step == run.state.global_step == measured.history[-1].step < 32
    assert OFTEN.id in gate.reason
    assert (tmp_path / f"checkpoint-{run.state.global_step}").is_dir()
    assert any("gate/exceeded" in entry for entry in run.state.log_history)
    record = run_record(run)
    assert record.gate is not None
    assert record.gate["answer"] == "exceeded"


def test_raise_and_warn(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="the gate is closed after"):
        trainer(tmp_path, exposure(), ExposureGateTrainerCallback(LIMIT, "raise"), **LEARN).train()
    plain = trainer(tmp_path, **LEARN)
    plain.train()
    warned = trainer(tmp_path, exposure(), ExposureGateTrainerCallback(LIMIT, "warn"), **LEARN)
    with pytest.warns(GateWarning, match="gate: exceeded"):
        warned.train()
    assert same_weights(plain.model, warned.model)


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"max_bits is 5.5, and no ExposureTrainerCallback is among"):
        trainer(tmp_path, ExposureGateTrainerCallback(LIMIT)).train()
    with pytest.raises(ArgumentError, match=r"max_bits is 7.0; expected less than 6.64"):
        trainer(tmp_path, exposure(), ExposureGateTrainerCallback(7.0)).train()
    with pytest.raises(ArgumentError, match="max_bits is None; expected a number of bits"):
        ExposureGateTrainerCallback(None)  # type: ignore[arg-type]
