"""What the callbacks of a run, and its data module, put into its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import (
    AuditCallback,
    CanaryDataModule,
    CanarySet,
    DifferentialPrivacy,
    ExposureCallback,
    ExtractionCallback,
    ScanCallback,
)
from lightning_exposure.errors import ArgumentError
from lightning_exposure.report import Contributor, RunRecord, run_record, weights_sha256
from lightning_exposure.report.recording import contributors_of
from tests.callbacks import setups
from tests.callbacks.setups import BOTH, CANARIES, CHARS, PIN, Model, trainer

QUICK: dict[str, Any] = {"budget": 200, "samples": 32, "references": 16, "every_n_epochs": 1}


def example(text: str) -> tuple[torch.Tensor]:
    return (torch.tensor(CHARS.encode((text + setups.TEXT)[:20])),)


def data_with(canaries: CanarySet, batch_size: int = 64) -> CanaryDataModule:
    windows = torch.tensor([CHARS.encode((setups.TEXT * 2)[i : i + 20]) for i in range(len(setups.TEXT))])
    return CanaryDataModule(DataLoader(TensorDataset(windows), batch_size=batch_size), canaries, example)


def fitted(folder: Path, *callbacks: Any, data: Any = None, max_epochs: int = 1) -> Any:
    torch.manual_seed(0)
    run = trainer(folder, *callbacks, max_epochs=max_epochs)
    run.fit(Model(), data_with(CANARIES) if data is None else data)
    return run


@pytest.mark.parametrize(
    "kind",
    [ExposureCallback, ExtractionCallback, ScanCallback, AuditCallback, DifferentialPrivacy, CanaryDataModule],
)
def test_everything_that_knows_something_contributes(kind: type) -> None:
    assert issubclass(kind, Contributor)


def test_a_record_holds_what_the_callbacks_and_the_data_module_know(tmp_path: Path) -> None:
    exposure = ExposureCallback(CANARIES, CHARS, **QUICK)
    attack = ExtractionCallback(CANARIES, CHARS, budget=200, verbose=False)
    run = fitted(tmp_path, exposure, attack, max_epochs=2)
    record = run_record(run)
    assert record.canaries == CANARIES
    assert record.history == exposure.history
    assert record.baseline == exposure.baseline_estimates
    assert record.extractions == attack.extractions
    assert record.ledger == {"my-pin-is-1x": 2, "my-pin-is-30x": 60} == run.datamodule.ledger.total
    assert record.steps == run.global_step
    assert record.model is not None
    assert record.model["sha256"] == weights_sha256(run.lightning_module)
    assert record.data == {"class": "DataLoader", "records": len(setups.TEXT) + 31}
    assert record.interrupted is None
    assert record.settings["exposure"] == exposure.settings
    assert {"torch", "lightning-exposure", "python"} <= set(record.settings["versions"])
    assert not record.others
    record.save(tmp_path, reveal=True)
    assert RunRecord.load(tmp_path) == record
    record.save(tmp_path)
    assert RunRecord.load(tmp_path) != record, "candidates that are no canary are masked"


def test_two_callbacks_on_the_same_canaries_are_both_there(tmp_path: Path) -> None:
    first = ExposureCallback(CANARIES, CHARS, **QUICK)
    second = ExposureCallback(CANARIES, CHARS, **QUICK, prior="before_training", name="against_before")
    with pytest.warns(UserWarning, match="before_training"):
        run = fitted(tmp_path, first, second)
    record = run_record(run)
    assert record.history == first.history
    assert record.others["against_before"].history == second.history
    assert record.others["against_before"].steps == record.steps
    record.save(tmp_path)
    assert RunRecord.load(tmp_path) == record


def test_callbacks_on_other_canaries_have_a_record_of_their_own(tmp_path: Path) -> None:
    again = CanarySet.draw(PIN, repetitions=[1, 30], seed=1)  # the same ids for other texts
    record = RunRecord(CANARIES)
    assert record.place_for("other", again, "history") is record.others["other"]
    assert record.others["other"].canaries == again
    assert record.place_for("attack on them", again, "extractions") is record.others["other"]


def test_an_attack_on_more_canaries_than_were_measured_widens_the_record() -> None:
    record = RunRecord(CanarySet([]))
    assert record.place_for("exposure", CANARIES, "history") is record
    assert record.place_for("extraction", BOTH, "extractions") is record
    assert record.canaries == BOTH


def test_differential_privacy_says_what_was_spent_and_how(tmp_path: Path) -> None:
    privacy = DifferentialPrivacy(
        noise_multiplier=1.0, max_grad_norm=0.5, delta=1e-5, accountant="rdp", seed=0, verify_steps=0, verbose=False
    )
    run = fitted(tmp_path, privacy, ExposureCallback(CANARIES, CHARS, **QUICK), max_epochs=4)
    spent = run_record(run).privacy
    assert spent is not None
    assert spent["epsilon"] == privacy.epsilon
    assert (spent["delta"], spent["noise_multiplier"], spent["max_grad_norm"]) == (1e-5, 1.0, 0.5)
    assert spent["accountant"] == "rdp"
    assert spent["steps"] == run.global_step
    steps, epsilons = zip(*spent["spending"], strict=True)
    assert steps[-1] == run.global_step
    assert epsilons[-1] == privacy.epsilon
    assert list(epsilons) == sorted(epsilons)
    assert not spent["proven"]


def test_an_epsilon_that_is_infinite_survives_the_file(tmp_path: Path) -> None:
    privacy = DifferentialPrivacy(noise_multiplier=0.0, max_grad_norm=1.0, delta=1e-5, seed=0, verify_steps=0)
    record = run_record(fitted(tmp_path, privacy, ExposureCallback(CANARIES, CHARS, **QUICK)))
    record.save(tmp_path)
    again = RunRecord.load(tmp_path).privacy
    assert again is not None
    assert again["epsilon"] == "inf"


def test_an_audit_says_its_bound(tmp_path: Path) -> None:
    canaries = CanarySet.draw(PIN, repetitions=[1] * 40, seed=0, holdout=0.5)
    audit = AuditCallback(canaries, CHARS)
    run = fitted(tmp_path, audit, data=data_with(canaries))
    record = run_record(run)
    assert audit.result is not None
    assert record.audit == {**audit.result.to_dict(), "epsilon_lower": audit.result.epsilon_lower, "alarm": False}
    assert record.verdict == "Nothing is known: no exposure was measured, and no attack was made"


def test_a_scan_is_masked(tmp_path: Path) -> None:
    text = f"{setups.TEXT} my ssn is 536-90-4399. "
    scan = ScanCallback([text], CHARS, budget=200, samples=32, verbose=False)
    record = run_record(fitted(tmp_path, scan))
    assert record.scan is not None
    assert len(record.scan["rows"]) == 1
    record.save(tmp_path)
    written = (tmp_path / "exposure.json").read_text(encoding="utf-8")
    assert "4399" not in written
    assert json.loads(written)["scan"]["masked"] is True


def test_a_trainer_without_our_callbacks_has_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected a Trainer with at least one callback of lightning_exposure"):
        run_record(trainer(tmp_path))


def test_whatever_has_the_method_contributes(tmp_path: Path) -> None:
    class Defended:
        def add_to_record(self, record: RunRecord) -> None:
            record.defences.append({"name": "quantize", "bits": 8})

    assert run_record(Defended()).defences == [{"name": "quantize", "bits": 8}]
    assert contributors_of(object()) == []
