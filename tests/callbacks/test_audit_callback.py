"""AuditCallback in real training runs: what it finds, what it leaves as it was, and what it refuses."""

from __future__ import annotations

import csv
import random
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback, SecretFormat
from lightning_exposure.callbacks import AuditCallback, AuditWarning
from lightning_exposure.data import TextDataModule
from lightning_exposure.errors import ArgumentError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.privacy.audit.audit import audit, largest_provable_epsilon
from tests.callbacks.audit_setups import COINS, KEYS, PINS, SOME, data, train
from tests.callbacks.setups import CHARS, Model, trainer

METRICS = {"epsilon_lower", "auc", "accuracy", "tpr_at_1_percent_fpr", "privacy_loss"}


# --- what it finds ------------------------------------------------------------------------------------------


def test_a_model_that_has_learned_its_canaries_by_heart_is_not_private(tmp_path: Path) -> None:
    callback, logger = AuditCallback(COINS, CHARS), CSVLogger(tmp_path)
    run = train(tmp_path, callback, logger=logger)
    found = callback.result
    assert found is not None
    assert found.auc > 0.95
    assert found.epsilon_lower > 1.5
    assert (found.inserted, found.held_out) == (len(COINS.inserted), len(COINS.held_out))
    assert (found.delta, found.records) == (1e-5, 1)
    assert not callback.alarm, "nobody promised anything"
    logged = {name: float(run.callback_metrics[f"audit/{name}"]) for name in METRICS}
    assert logged == {name: pytest.approx(getattr(found, name), rel=1e-6) for name in METRICS}
    assert "audit/alarm" not in run.callback_metrics
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        (row,) = [row for row in csv.DictReader(file) if row.get("audit/epsilon_lower")]
    assert float(row["audit/epsilon_lower"]) == pytest.approx(found.epsilon_lower)
    assert int(row["step"]) == run.global_step


def test_the_score_is_by_how_many_bits_a_canary_became_cheaper(tmp_path: Path) -> None:
    callback, model = AuditCallback(SOME, CHARS, delta=0.0), Model(16, lr=2e-2)
    exposure = ExposureCallback(SOME, CHARS, every_n_epochs=2, method="importance", samples=16)
    train(tmp_path, callback, exposure, canaries=SOME, model=model, max_epochs=2)
    before = {name: estimate.log_perplexity for name, estimate in exposure.baseline_estimates.items()}
    after = {name: estimate.log_perplexity for name, estimate in exposure.history[-1].estimates.items()}
    assert callback.baseline_bits == pytest.approx(before, rel=1e-5)
    gains = {name: before[name] - after[name] for name in before}
    by_hand = audit(
        [gains[canary.id] for canary in SOME.inserted], [gains[canary.id] for canary in SOME.held_out], delta=0.0
    )
    assert callback.result == by_hand


def test_a_model_that_does_not_learn_proves_nothing(tmp_path: Path) -> None:
    callback = AuditCallback(SOME, CHARS)
    train(tmp_path, callback, canaries=SOME, model=Model(8, lr=0.0), max_epochs=1)
    assert callback.result is not None
    assert (callback.result.epsilon_lower, callback.result.auc) == (0.0, 0.5)


def test_without_a_baseline_it_compares_with_other_secrets_of_the_format(tmp_path: Path) -> None:
    both = CanarySet.draw([PINS, KEYS], repetitions=[1] * 60, seed=1, holdout=0.5)
    bare, compared = AuditCallback(both, CHARS, baseline=False), AuditCallback(both, CHARS, name="compared")
    train(tmp_path, bare, compared, canaries=both)
    assert bare.baseline_bits == {}
    assert bare.result is not None
    assert compared.result is not None
    assert bare.result.auc > 0.9
    assert bare.result.epsilon_lower > 0.5
    assert bare.result != compared.result


def test_a_format_with_no_other_secrets_has_only_the_canaries_to_compare_with(tmp_path: Path) -> None:
    digits = CanarySet.draw(SecretFormat("my pin is #", name="digit"), repetitions=[1] * 10, seed=0, holdout=0.5)
    callback = AuditCallback(digits, CHARS, baseline=False)
    with pytest.warns(AuditWarning, match="10 canaries"):
        train(tmp_path, callback, canaries=digits, max_epochs=1)
    assert callback.result is not None


def test_every_few_epochs_and_at_the_end(tmp_path: Path) -> None:
    callback, logger = AuditCallback(SOME, CHARS, every_n_epochs=2), CSVLogger(tmp_path)
    run = train(tmp_path, callback, canaries=SOME, model=Model(8), logger=logger, max_epochs=5)
    with open(Path(logger.log_dir) / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row.get("audit/auc")]
    steps = run.global_step // 5
    assert [int(row["step"]) for row in rows] == [2 * steps, 4 * steps, 5 * steps]
    assert {f"audit/{name}" for name in METRICS} <= run.callback_metrics.keys()


def test_all_looks_together_share_one_error(tmp_path: Path) -> None:
    confidences = []

    class Watched(AuditCallback):
        def _sound(self, trainer: Any) -> None:
            assert self.result is not None
            confidences.append(self.result.confidence)

    train(tmp_path, Watched(SOME, CHARS, every_n_epochs=1, confidence=0.9), canaries=SOME, model=Model(8), max_epochs=4)
    errors = [1 - confidence for confidence in confidences]
    assert errors == pytest.approx([0.05 / 2, 0.05 / 6, 0.05 / 12, 0.05 / 20, 0.05])
    assert sum(errors) < 0.1
    confidences.clear()
    train(tmp_path, Watched(SOME, CHARS, confidence=0.9), canaries=SOME, model=Model(8), max_epochs=2)
    assert confidences == [0.9], "who looks once has all of it"


def test_only_the_canaries_with_a_coin_take_part(tmp_path: Path) -> None:
    sure = CanarySet.draw(KEYS, repetitions=[0, 8], seed=0)
    controls = CanarySet.draw(PINS, repetitions=[0], seed=9, holdout=0.5)
    mixed = CanarySet([*SOME, *sure, *controls])
    callback = AuditCallback(mixed, CHARS)
    assert callback.canaries == SOME
    assert callback.records == 1
    train(tmp_path, callback, canaries=mixed, model=Model(8), max_epochs=1)
    assert set(callback.baseline_bits) == {canary.id for canary in SOME}


def test_two_side_by_side(tmp_path: Path) -> None:
    one, two = AuditCallback(SOME, CHARS), AuditCallback(SOME, CHARS, confidence=0.9)
    run = train(tmp_path, one, two, canaries=SOME, model=Model(8), max_epochs=1)
    assert one.state_key != two.state_key
    assert {"audit/auc", "audit_2/auc"} <= run.callback_metrics.keys()


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_under_either_lightning(name: str, tmp_path: Path) -> None:
    pl: ModuleType = import_module(name)
    canaries = CanarySet.draw(SecretFormat("the pin is ###"), repetitions=[1] * 40, seed=0, holdout=0.5)
    text = TextDataModule.under(name)("once upon a time there was a pin\n" * 60, canaries=canaries, window=24)
    text.setup("fit")
    model = LanguageModel.under(name)(vocab_size=text.tokenizer.vocab_size, hidden_size=8, num_layers=1)
    callback = AuditCallback(canaries)
    run = pl.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[callback, ExtractionCallback(canaries, verbose=False, budget=100)],
        default_root_dir=tmp_path, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    with pytest.warns(AuditWarning, match="cuts a running text into windows"):
        run.fit(model, text)
    assert callback.result is not None
    assert set(callback.baseline_bits) == {canary.id for canary in canaries}


# --- it changes nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [True, False])
def test_the_weights_are_bit_for_bit_the_same_with_and_without_it(tmp_path: Path, baseline: bool) -> None:
    weights, states = [], []
    for extra in ([], [AuditCallback(SOME, CHARS, every_n_epochs=1, baseline=baseline)]):
        torch.manual_seed(0)
        random.seed(0)
        model = Model(16)  # with dropout
        train(tmp_path, *extra, canaries=SOME, model=model, max_epochs=3)
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        states.append((torch.get_rng_state().tolist(), random.getstate(), model.training))
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert states[0] == states[1]


# --- resuming -----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_resumed_training_compares_with_the_model_before_it_began(tmp_path: Path) -> None:
    keeping = ModelCheckpoint(tmp_path / "kept", save_last=True)
    first = AuditCallback(SOME, CHARS, every_n_epochs=1)
    train(tmp_path, first, keeping, canaries=SOME, model=Model(8), max_epochs=1, enable_checkpointing=True)
    again = AuditCallback(SOME, CHARS, every_n_epochs=1)
    run = trainer(tmp_path, again, max_epochs=2)
    run.fit(Model(8), data(SOME), ckpt_path=keeping.last_model_path, weights_only=True)
    assert again.baseline_bits == first.baseline_bits
    assert again.result != first.result
    other_coins = CanarySet(canary.replace(held_out=not canary.held_out) for canary in SOME)
    with pytest.raises(ArgumentError, match=r"other texts, or others held out.*Resume with the canaries"):
        trainer(tmp_path, AuditCallback(other_coins, CHARS, every_n_epochs=1), max_epochs=3).fit(
            Model(8), data(other_coins), ckpt_path=keeping.last_model_path, weights_only=True
        )


def test_a_state_survives_and_a_second_fit_begins_anew(tmp_path: Path) -> None:
    callback = AuditCallback(SOME, CHARS)
    copy = AuditCallback(SOME, CHARS)
    copy.load_state_dict(callback.state_dict())
    assert copy.state_dict() == callback.state_dict(), "before any training"
    train(tmp_path, callback, canaries=SOME, model=Model(8), max_epochs=1)
    copy.load_state_dict(callback.state_dict())
    assert (copy.baseline_bits, copy.result) == (callback.baseline_bits, callback.result)
    before = callback.baseline_bits
    torch.manual_seed(7)
    trainer(tmp_path, callback, max_epochs=1).fit(Model(8), data(SOME))
    assert callback.baseline_bits.keys() == before.keys()
    assert callback.baseline_bits != before


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("canaries", "message"),
    [
        (
            CanarySet.draw(PINS, repetitions=[1, 4]),
            "canaries has 2, none drawn with a holdout; .*holdout=0.5",
        ),
        (
            CanarySet.draw(PINS, repetitions=[0] * 40, holdout=0.5),
            "canaries has 40, none that is in the training data if its coin says so: all have 0 repetitions; expected",
        ),
        (
            CanarySet.draw(PINS, repetitions=[1] * 9, holdout=0.25),
            r"probability of 0\.25; .*fair coins only.*holdout=0",
        ),
        (COINS.inserted, r"canaries has \d+, none of which is held out; expected both kinds"),
        (COINS.held_out, r"canaries has \d+, none of which is inserted; expected both kinds"),
        (list(COINS), r"canaries is .*, of type list; expected a CanarySet"),
    ],
)
def test_canaries_that_nothing_can_be_concluded_from(canaries: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AuditCallback(canaries, CHARS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_n_epochs": -1}, "every_n_epochs is -1; expected an integer of at least 0. 0 is only"),
        ({"delta": 1.0}, r"delta is 1\.0; expected a number of at least 0 and below 1"),
        ({"confidence": 95}, "confidence is 95; expected a number above 0 and below 1"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AuditCallback(SOME, CHARS, **settings)


def test_too_few_canaries_are_told_what_they_can_show(tmp_path: Path) -> None:
    few = CanarySet.draw(PINS, repetitions=[1] * 10, seed=0, holdout=0.5)
    largest = largest_provable_epsilon(10, delta=1e-5)
    assert 0 < largest < 0.5
    with pytest.warns(
        AuditWarning, match=f"10 canaries: .* cannot show that epsilon is above {largest:.2g} .*Draw more"
    ):
        train(tmp_path, AuditCallback(few, CHARS), canaries=few, model=Model(8), max_epochs=1)
    many_times = CanarySet.draw(PINS, repetitions=[20] * 40, seed=0, holdout=0.5)
    with pytest.warns(AuditWarning, match="40 canaries, each up to 20 records: .*with one repetition each"):
        train(tmp_path, AuditCallback(many_times, CHARS), canaries=many_times, model=Model(8), max_epochs=1)
