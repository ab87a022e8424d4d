"""A gate in a real Trainer: it stops, raises or warns, and otherwise leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_exposure import CanarySet, DifferentialPrivacy, ExposureCallback, ExposureGate
from lightning_exposure.callbacks import GateWarning
from lightning_exposure.errors import ArgumentError, GateError
from lightning_exposure.privacy import PoissonLoader
from lightning_exposure.report import RunRecord
from tests.callbacks.setups import CANARIES, CHARS, PIN, Model, loader, trainer

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 6.0
"""Above what luck gives two canaries, and below what 30 copies come to."""


def exposure(**settings: Any) -> ExposureCallback:
    return ExposureCallback(CANARIES, CHARS, references=0, **settings)


def fit(folder: Path, *callbacks: L.Callback, **options: Any) -> tuple[Model, L.Trainer]:
    L.seed_everything(3, verbose=False)
    model = Model(lr=2e-2)
    run = trainer(folder, *callbacks, **({"max_epochs": 8, "limit_val_batches": 0} | options))
    run.fit(model, loader(), loader(shuffle=False), ckpt_path=options.pop("ckpt_path", None))
    return model, run


def test_training_stops_when_the_limit_is_exceeded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured, gate = exposure(), ExposureGate(max_bits=LIMIT)
    _, run = fit(tmp_path, measured, gate)
    assert run.current_epoch < 8
    assert gate.answer == "exceeded"
    assert gate.stopped_at_step == run.global_step == measured.history[-1].step
    assert max(e.low for e in measured.history[-1].estimates.values()) > LIMIT
    assert all(e.high <= LIMIT for m in measured.history[:-1] for e in m.estimates.values())
    assert "gate: training ends here (exceeded): 'my-pin-is-30x'" in capsys.readouterr().err
    record = RunRecord(CANARIES)
    gate.add_to_record(record)
    assert record.gate is not None
    expected = {"max_bits": LIMIT, "answer": "exceeded", "action": "stop", "stopped_at_step": run.global_step}
    assert expected.items() <= record.gate.items()
    assert record.gate["canary"] == "my-pin-is-30x"
    assert RunRecord.load(record.save(tmp_path / "record")).gate == record.gate
    metrics = {name: float(value) for name, value in run.callback_metrics.items()}
    assert metrics["gate/exceeded"] == 1.0
    assert metrics["gate/low"] > LIMIT
    assert metrics["exposure_high/max"] >= metrics["exposure_low/max"]


def test_it_stands_behind_what_it_looks_at_wherever_it_was_put(tmp_path: Path) -> None:
    gate, measured = ExposureGate(max_bits=LIMIT), exposure(every_n_epochs=0, every_n_steps=5)
    _, run = fit(tmp_path, gate, measured)
    assert gate.stopped_at_step == run.global_step
    assert run.global_step % 5 == 0
    assert [type(it).__name__ for it in run.callbacks[:2]] == ["ExposureCallback", "ExposureGate"]  # type: ignore[attr-defined]


def test_raise_comes_after_the_checkpoint(tmp_path: Path) -> None:
    keeping = ModelCheckpoint(tmp_path, filename="kept", save_on_train_epoch_end=True)
    gate = ExposureGate(max_bits=LIMIT, action="raise")
    with pytest.raises(GateError, match=r"the gate is closed after \d+ steps \(exceeded\): 'my-pin-is-30x'"):
        fit(tmp_path, gate, exposure(), keeping, enable_checkpointing=True)
    state = torch.load(tmp_path / "kept.ckpt", weights_only=True)
    assert state["global_step"] == gate.stopped_at_step
    assert state["callbacks"]["ExposureGate[gate]"]["answer"] == "exceeded"
    assert not any(canary.text in str(state["callbacks"]["ExposureGate[gate]"]) for canary in CANARIES)


def test_a_warning_changes_no_weight_and_comes_once(tmp_path: Path) -> None:
    plain, _ = fit(tmp_path)
    gate = ExposureGate(max_bits=LIMIT, action="warn")
    with pytest.warns(GateWarning) as caught:
        warned, run = fit(tmp_path, gate, exposure())
    ours = [str(it.message) for it in caught if it.category is GateWarning]
    assert [text.startswith("gate: exceeded: 'my-pin-is-30x' has") for text in ours] == [True]
    assert run.current_epoch == 8
    assert gate.stopped_at_step is not None
    assert gate.stopped_at_step < run.global_step
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, warned.state_dict()[name])


def test_measuring_further_changes_no_weight(tmp_path: Path) -> None:
    """Samples that are far too small: the gate has to measure further, also in the middle of an epoch."""
    plain, _ = fit(tmp_path, max_epochs=2)
    measured = exposure(samples=8, budget=10, precision=None, every_n_steps=7)
    gate = ExposureGate(max_bits=11.0, undecided="ignore", max_effort=4)
    gated, _ = fit(tmp_path, measured, gate, max_epochs=2)
    assert gate.answer is not None
    assert gate._keeper.looks == len(measured.history)
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, gated.state_dict()[name])


def test_what_stays_undecided_is_treated_as_the_user_said(tmp_path: Path) -> None:
    few = {"samples": 8, "budget": 10, "precision": None, "method": "sampling"}
    with pytest.warns(GateWarning, match="gate: undecided: 'my-pin-is-.*x' has between .* neither kept nor exceeded"):
        fit(tmp_path, exposure(**few), ExposureGate(max_bits=11.0, max_effort=1), max_epochs=3)
    gate = ExposureGate(max_bits=11.0, max_effort=1, undecided="raise")
    with pytest.raises(GateError, match=r"closed \(undecided\)"):
        fit(tmp_path, exposure(**few), gate, max_epochs=3)
    assert gate.stopped_at_step is None


def test_callbacks_that_monitor_find_its_bounds(tmp_path: Path) -> None:
    keeping = ModelCheckpoint(tmp_path, monitor="gate/high", mode="min", filename="lowest")
    stopping = EarlyStopping("exposure_high/max", mode="min", patience=100)
    gate = ExposureGate(max_bits=12.0, action="warn")
    fit(tmp_path, exposure(), gate, keeping, stopping, enable_checkpointing=True, max_epochs=2, limit_val_batches=1)
    assert keeping.best_model_score is not None
    assert (tmp_path / "lowest.ckpt").exists()
    assert {name.partition("/")[0] for name in gate._keeper.newest_metrics()} == {"gate"}


def test_a_resumed_run_keeps_what_was_spent(tmp_path: Path) -> None:
    few = {"samples": 8, "budget": 10, "precision": None}
    gate = ExposureGate(max_bits=11.0, undecided="ignore", max_effort=1)
    _, first = fit(tmp_path, exposure(**few), gate, max_epochs=2)
    gate._keeper.spending.confirmations = 3
    first.save_checkpoint(tmp_path / "spent.ckpt")
    again, measured = ExposureGate(max_bits=11.0, undecided="ignore", max_effort=1), exposure(**few)
    run = trainer(tmp_path, measured, again, max_epochs=4, limit_val_batches=0)
    run.fit(Model(lr=2e-2), loader(), ckpt_path=tmp_path / "spent.ckpt")
    assert len(measured.history) == again._keeper.looks == 4
    assert again._keeper.spending.confirmations >= 3
    assert again._keeper.newest_metrics()["gate/alpha_spent"] >= 0.05 * 3 / 4


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (ExposureGate(max_bits=8), "max_bits is 8, and no ExposureCallback is among the callbacks.*Add Exposure"),
        (ExposureGate(max_epsilon=8), "max_epsilon is 8, and no DifferentialPrivacy is among.*Add DifferentialPriv"),
    ],
)
def test_what_cannot_work_is_refused_before_training(tmp_path: Path, gate: ExposureGate, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        fit(tmp_path, gate)


def test_two_gates_with_two_names(tmp_path: Path) -> None:
    gates = ExposureGate(max_bits=8.0, action="warn"), ExposureGate(max_bits=9.0, action="warn", name="strict")
    _, run = fit(tmp_path, *gates, exposure(), max_epochs=1)
    assert {"gate/exceeded", "strict/exceeded"} <= set(run.callback_metrics)


def test_a_limit_above_what_a_format_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"max_bits is 14.0; expected less than 13.29"):
        fit(tmp_path, exposure(), ExposureGate(max_bits=14.0))


def test_luck_is_warned_of_before_training(tmp_path: Path) -> None:
    with pytest.warns(GateWarning, match="the luckiest of 2 random secrets"):
        fit(tmp_path, exposure(), ExposureGate(max_bits=5.0, action="warn"), max_epochs=0)


def test_controls_alone_are_nothing_to_judge(tmp_path: Path) -> None:
    controls = CanarySet.draw(PIN, repetitions=[0, 0], seed=0)
    with pytest.raises(ArgumentError, match="canaries were all left out"):
        fit(tmp_path, ExposureCallback(controls, CHARS), ExposureGate(max_bits=8))


def test_epsilon_closes_the_gate(tmp_path: Path) -> None:
    private = DifferentialPrivacy(noise_multiplier=0.6, max_grad_norm=1.0, delta=1e-5, seed=0, accountant="rdp")
    private.verbose = False
    gate = ExposureGate(max_epsilon=1.0)
    model = Model()
    run = trainer(tmp_path, gate, private, max_epochs=5, limit_val_batches=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.fit(model, PoissonLoader(loader()))
    assert gate.answer == "exceeded"
    assert run.current_epoch == 1
    assert gate.reason == f"epsilon is {private.epsilon:.4g}, above the limit of 1"


@pytest.mark.slow
def test_two_processes_stop_together(tmp_path: Path) -> None:
    script = [sys.executable, "-m", "tests.callbacks.gate_ddp_script", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert first == second
    assert first["answer"] == "exceeded"
    assert first["step"] == first["stopped_at_step"] < first["all_steps"]
    assert first["further"] > 0  # both had a part in measuring further
