"""AuditCallback against promises, and canaries that are held out: when there is an alarm, and what is an error."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback, callbacks
from lightning_exposure.callbacks import AuditCallback, AuditWarning
from lightning_exposure.data import TextDataModule, inject
from lightning_exposure.data.ledger import Ledger
from lightning_exposure.errors import ArgumentError, DataError, FitError
from lightning_exposure.privacy import audit
from lightning_exposure.report import RunRecord
from tests.callbacks.audit_setups import COINS, PINS, SOME, DifferentialPrivacy, data, encode, train
from tests.callbacks.setups import CHARS, Model, trainer
from tests.report.builder import make_extraction

# --- the alarm ----------------------------------------------------------------------------------------------


def test_a_broken_promise_is_an_alarm(tmp_path: Path) -> None:
    callback = AuditCallback(COINS, CHARS)
    with pytest.warns(AuditWarning, match=r"of \d+ guesses .* epsilon is at least \d\.\d\d .*, but 0\.50 is promised"):
        run = train(tmp_path, callback, DifferentialPrivacy(0.5))
    assert callback.alarm
    assert run.callback_metrics["audit/alarm"] == 1.0


def test_the_alarm_can_stop_everything_after_it_was_logged(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    with pytest.raises(FitError, match=r"Privacy alarm: .* 0\.50 is promised\. Look for noise or clipping"):
        train(tmp_path, AuditCallback(COINS, CHARS, raise_on_alarm=True), DifferentialPrivacy(0.5), logger=logger)
    logger.save()
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        assert [row["audit/alarm"] for row in csv.DictReader(file) if row.get("audit/alarm")] == ["1.0"]


def test_a_promise_that_is_kept_is_none(tmp_path: Path) -> None:
    callback = AuditCallback(SOME, CHARS, raise_on_alarm=True)
    for promise in (1000.0, float("inf")):
        run = train(tmp_path, callback, DifferentialPrivacy(promise), canaries=SOME, model=Model(8), max_epochs=1)
        assert not callback.alarm
        assert run.callback_metrics["audit/alarm"] == 0.0


@pytest.mark.parametrize("audited_first", [True, False])
def test_a_training_that_is_really_private_is_not_accused(tmp_path: Path, audited_first: bool) -> None:
    callback = AuditCallback(COINS, CHARS, raise_on_alarm=True)
    privacy = callbacks.DifferentialPrivacy(noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-4)
    order = (callback, privacy) if audited_first else (privacy, callback)
    run = train(tmp_path, *order, model=Model(16, lr=2e-2), max_epochs=3)
    assert callback.result is not None
    assert callback.result.delta == 1e-4
    assert callback.result.epsilon_lower < privacy.epsilon < 20
    assert run.callback_metrics["audit/alarm"] == 0.0
    assert {"privacy/epsilon", "audit/epsilon_lower"} <= run.callback_metrics.keys()


def test_an_epsilon_that_was_only_logged_counts_as_well(tmp_path: Path) -> None:
    class Claims(Model):
        def on_train_epoch_end(self) -> None:
            self.log("privacy/epsilon", 0.25)

    with pytest.raises(FitError, match=r"but 0\.25 is promised"):
        train(tmp_path, AuditCallback(COINS, CHARS, raise_on_alarm=True), model=Claims(64, lr=2e-2))


def test_a_canary_that_is_two_records_is_compared_with_the_promise_for_one(tmp_path: Path) -> None:
    pairs = CanarySet.draw(PINS, repetitions=[2] * 120, seed=0, holdout=0.5)
    callback = AuditCallback(pairs, CHARS, delta=0.0)
    train(tmp_path, callback, canaries=pairs, max_epochs=8)
    found = callback.result
    assert found is not None
    assert found.records == callback.records == 2
    bound = found.epsilon_lower
    # What the guesses prove of the group is twice that, but that is not what is promised.
    as_one_record = one_record(callback)
    assert as_one_record == pytest.approx(2 * bound, abs=0.02)
    between = (bound + as_one_record) / 2
    quiet_one = AuditCallback(pairs, CHARS, delta=0.0, raise_on_alarm=True)
    train(tmp_path, quiet_one, DifferentialPrivacy(between, delta=0.0), canaries=pairs, max_epochs=8)
    assert not quiet_one.alarm
    with pytest.raises(FitError):
        train(tmp_path, quiet_one, DifferentialPrivacy(bound * 0.9, delta=0.0), canaries=pairs, max_epochs=8)


def one_record(callback: AuditCallback) -> float:
    """What the right guesses of a callback would prove if each canary were one record."""
    found = callback.result
    assert found is not None
    scores = callback._audit.scores
    sides = [[scores[c.id] for c in callback.canaries if c.held_out is out] for out in (False, True)]
    return audit(*sides, delta=0.0).epsilon_lower


def test_the_delta_is_that_of_the_promise(tmp_path: Path) -> None:
    callback = AuditCallback(SOME, CHARS)
    train(tmp_path, callback, DifferentialPrivacy(100.0, 1e-3), canaries=SOME, model=Model(8), max_epochs=1)
    assert callback.result is not None
    assert callback.result.delta == 1e-3
    with pytest.raises(ArgumentError, match=r"delta is 1e-06; expected at least 0\.001, the delta of Differential"):
        train(tmp_path, AuditCallback(SOME, CHARS, delta=1e-6), DifferentialPrivacy(1.0, 1e-3), canaries=SOME)
    larger = AuditCallback(SOME, CHARS, delta=2e-3)
    train(tmp_path, larger, DifferentialPrivacy(100.0, 1e-3), canaries=SOME, model=Model(8), max_epochs=1)
    assert larger.result is not None
    assert larger.result.delta == 2e-3


# --- held out means out -------------------------------------------------------------------------------------


def test_what_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    module = data(COINS)
    trainer(tmp_path, max_epochs=2).fit(Model(8), module)
    for epoch in range(2):
        assert module.ledger[epoch] == {canary.id: 0 if canary.held_out else 1 for canary in COINS}
    assert len(module.ledger.total) == len(COINS), "those that are out are counted too: zero times"


def test_what_is_held_out_is_not_put_into_a_text() -> None:
    text = "once upon a time there was a pin\n" * 400
    injected = inject(text, COINS, seed=0)
    assert {canary.id for canary in COINS if canary.text in injected} == {canary.id for canary in COINS.inserted}
    windows = TextDataModule(text, canaries=COINS, window=40, whole_canaries=True)
    windows.setup()
    assert windows._train is not None
    written = windows.tokenizer.decode(windows._train.ids.tolist())
    assert {canary.id for canary in COINS if canary.text in written} == {canary.id for canary in COINS.inserted}


def test_the_other_callbacks_measure_what_is_held_out_too(tmp_path: Path) -> None:
    exposure = ExposureCallback(SOME, CHARS, method="importance", samples=64)
    attack = ExtractionCallback(SOME, CHARS, verbose=False, budget=200)
    train(tmp_path, exposure, attack, canaries=SOME, model=Model(8), max_epochs=1)
    assert set(exposure.history[0].estimates) == {canary.id for canary in SOME}


def test_a_report_does_not_count_what_was_held_out_among_the_secrets() -> None:
    few = CanarySet.draw(PINS, repetitions=[1] * 4, seed=0, holdout=0.5)
    (out, *_), inside = few.held_out, few.inserted
    record = RunRecord(few, extractions={"pin": make_extraction([inside[0].text, out.text])})
    assert record.verdict.startswith(f"1 of {len(inside)} secret")
    assert f"control can be extracted: {out.id}" in record.verdict


def test_a_datamodule_with_other_canaries_is_refused_before_training(tmp_path: Path) -> None:
    inside_out = CanarySet(canary.replace(held_out=not canary.held_out) for canary in SOME)
    with pytest.raises(DataError, match=r"is in the training data \d times, .*; expected \d\. Give the same"):
        train(tmp_path, AuditCallback(SOME, CHARS), canaries=inside_out)
    with pytest.raises(DataError, match=r"is in the training data 0 times, .*; expected 1"):
        train(tmp_path, AuditCallback(SOME, CHARS), canaries=SOME[:3])
    twice = CanarySet(canary.replace(repetitions=2) for canary in SOME)
    with pytest.raises(DataError, match=r"is in the training data 2 times, .*; expected 1"):
        train(tmp_path, AuditCallback(SOME, CHARS), canaries=twice)


def test_a_ledger_that_shows_what_was_held_out_is_refused(tmp_path: Path) -> None:
    out = SOME.held_out[0]

    class Careless(L.LightningDataModule):
        """Counts what it fetches, and fetches what it should not."""

        def __init__(self) -> None:
            super().__init__()
            self.ledger = Ledger(canary.id for canary in SOME)

        def train_dataloader(self) -> Any:
            self.ledger.add(0, [out.id])
            return DataLoader(TensorDataset(torch.stack([encode(out.text)[0]] * 4)), batch_size=4)

    with pytest.raises(DataError, match=f"canaries has {out.id} held out, but fetched for training"):
        trainer(tmp_path, AuditCallback(SOME, CHARS), max_epochs=1).fit(Model(8), Careless())
