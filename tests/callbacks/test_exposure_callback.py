"""`ExposureCallback` in real training runs."""

from __future__ import annotations

import csv
import inspect
import random
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_exposure import (
    CanarySet,
    ExposureCallback,
    ExtractionCallback,
    SecretFormat,
    SecretTree,
    measure_exposure,
)
from lightning_exposure.callbacks import quiet
from lightning_exposure.errors import ArgumentError, ModelError, TokenizerError
from lightning_exposure.tokenization import CharTokenizer
from tests.callbacks.setups import BOTH, CANARIES, CHARS, KEY, PIN, Model, loader, trainer

OFTEN = CANARIES[1].id


def fit(folder: Path, *callbacks: L.Callback, validate: bool = False, model: Any = None, **options: Any) -> L.Trainer:
    torch.manual_seed(0)
    run = trainer(folder, *callbacks, **options)
    run.fit(model or Model(), loader(BOTH), loader(shuffle=False) if validate else None, ckpt_path=None)
    return run


class TestWhatIsLogged:
    @pytest.mark.parametrize("validate", [False, True])
    def test_exposure_rises_and_every_number_is_there(self, tmp_path: Path, validate: bool) -> None:
        callback = ExposureCallback(CANARIES, CHARS)
        run = fit(tmp_path, callback, validate=validate, max_epochs=6)
        metrics = run.callback_metrics
        for canary in CANARIES:
            low, bits, high = (metrics[f"exposure{part}/{canary.id}"] for part in ("_low", "", "_high"))
            assert low <= bits <= high <= PIN.bits + 1e-4
        assert metrics["exposure/max"] == max(metrics[f"exposure/{canary.id}"] for canary in CANARIES)
        assert metrics["exposure_low/max"] == max(metrics[f"exposure_low/{canary.id}"] for canary in CANARIES)
        assert metrics["exposure/seconds"] > 0
        assert [measurement.epoch for measurement in callback.history] == [1, 2, 3, 4, 5, 6]
        assert callback.history[-1].estimates[OFTEN].bits > callback.baseline_estimates[OFTEN].bits
        gain = callback.history[-1].estimates[OFTEN].bits - callback.baseline_estimates[OFTEN].bits
        assert metrics[f"exposure_gain/{OFTEN}"] == pytest.approx(gain, abs=1e-4)
        assert callback.history[-1].train_loss == pytest.approx(float(metrics["train_loss"]))
        assert (callback.history[-1].val_loss is not None) == validate

    def test_it_is_what_one_measures_by_hand(self, tmp_path: Path) -> None:
        callback, model = ExposureCallback(CANARIES, CHARS), Model()
        fit(tmp_path, callback, model=model)
        by_hand = measure_exposure(SecretTree(model, PIN, CHARS), list(CANARIES.texts), precision=0.25)
        assert [estimate.bits for estimate in callback.history[-1].estimates.values()] == [e.bits for e in by_hand]

    def test_callbacks_that_monitor_find_it_with_and_without_validation(self, tmp_path: Path) -> None:
        for validate in (False, True):
            stopping = EarlyStopping("exposure/mean", mode="min", patience=0, check_on_train_epoch_end=not validate)
            keeping = ModelCheckpoint(tmp_path / str(validate), monitor="exposure/max", mode="min")
            run = fit(
                tmp_path, ExposureCallback(CANARIES, CHARS), stopping, keeping,
                validate=validate, max_epochs=8, enable_checkpointing=True,
            )  # fmt: skip
            assert run.current_epoch < 8
            assert keeping.best_model_score is not None

    @pytest.mark.parametrize(("every_n_epochs", "epochs"), [(2, [2, 4, 5]), (5, [5]), (0, [5])])
    @pytest.mark.parametrize("validate", [False, True])
    def test_every_n_epochs_and_at_the_end(
        self, tmp_path: Path, every_n_epochs: int, epochs: list[int], validate: bool
    ) -> None:
        callback = ExposureCallback(CANARIES, CHARS, every_n_epochs=every_n_epochs)
        run = fit(tmp_path, callback, max_epochs=5, validate=validate)
        assert [measurement.epoch for measurement in callback.history] == epochs
        assert callback.history[-1].train_loss is not None
        assert float(run.callback_metrics[f"exposure/{OFTEN}"]) == pytest.approx(
            callback.history[-1].estimates[OFTEN].bits, abs=1e-4
        )

    def test_an_end_in_mid_epoch_is_measured_too(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS, every_n_epochs=0)
        run = fit(tmp_path, callback, max_epochs=-1, max_steps=5)
        assert [measurement.step for measurement in callback.history] == [run.global_step] == [5]

    def test_every_n_steps_reaches_the_loggers_whatever_they_skip(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS, every_n_epochs=0, every_n_steps=4)
        logger = CSVLogger(tmp_path)
        run = fit(tmp_path, callback, max_epochs=1, logger=logger, log_every_n_steps=7)
        steps = [measurement.step for measurement in callback.history]
        every_fourth = [step for step in range(1, run.global_step + 1) if step % 4 == 0]
        assert steps == sorted({*every_fourth, run.global_step})
        logger.save()
        with open(Path(logger.log_dir) / "metrics.csv") as file:
            logged = [int(row["step"]) for row in csv.DictReader(file) if row.get("exposure/mean")]
        assert logged == steps

    def test_validation_in_mid_epoch_measures_once_per_epoch(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS)
        fit(tmp_path, callback, validate=True, val_check_interval=0.34, max_epochs=2)
        assert [measurement.epoch for measurement in callback.history] == [1, 2]

    def test_the_sanity_check_is_not_measured(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS, baseline=False)
        fit(tmp_path, callback, validate=True, num_sanity_val_steps=2, max_epochs=1)
        assert len(callback.history) == 1
        assert callback.baseline_estimates == {}

    def test_fast_dev_run_is_fast(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS, samples=100_000, budget=10**9)
        fit(tmp_path, callback, fast_dev_run=True)
        assert all(estimate.expansions < 3_000 for estimate in callback.history[0].estimates.values())

    def test_two_side_by_side(self, tmp_path: Path) -> None:
        one, two = ExposureCallback(CANARIES, CHARS), ExposureCallback(BOTH, CHARS, method="importance")
        run = fit(tmp_path, one, two, max_epochs=1)
        assert one.state_key != two.state_key
        assert {"exposure/mean", "exposure_2/mean"} <= run.callback_metrics.keys()

    def test_the_tokenizer_may_be_the_datamodules(self, tmp_path: Path) -> None:
        class Data(L.LightningDataModule):
            tokenizer = CHARS

            def train_dataloader(self) -> Any:
                return loader()

        callback = ExposureCallback(CANARIES)
        trainer(tmp_path, callback, max_epochs=1).fit(Model(), datamodule=Data())
        assert len(callback.history) == 1

    def test_several_loggers_at_once_and_tensorboard_holds_the_numbers(self, tmp_path: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        loggers = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")]
        callback = ExposureCallback(CANARIES, CHARS)
        fit(tmp_path, callback, ExtractionCallback(CANARIES, CHARS, verbose=False), logger=loggers)
        events = EventAccumulator(loggers[1].log_dir)
        events.Reload()
        assert len(events.Scalars(f"exposure/{OFTEN}")) == 3
        assert events.Scalars("exposure/mean")[-1].value == pytest.approx(
            np.mean([estimate.bits for estimate in callback.history[-1].estimates.values()]), rel=1e-5
        )
        assert any("extraction" in tag for tag in events.Tags()["tensors"])


class TestOftenMissed:
    def test_a_second_fit_begins_a_new_history(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS)
        fit(tmp_path, callback, max_epochs=2)
        first = callback.history
        other = Model(width=16)
        fit(tmp_path, callback, max_epochs=2, model=other)
        assert len(callback.history) == 2
        assert callback.history != first
        by_hand = measure_exposure(SecretTree(other, PIN, CHARS), list(CANARIES.texts), precision=0.25)
        assert [estimate.bits for estimate in callback.history[-1].estimates.values()] == [e.bits for e in by_hand]

    def test_a_trial_run_leaves_the_settings_alone(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS, method="exact", budget=10**6)
        attack = ExtractionCallback(CANARIES, CHARS, verbose=False)
        fit(tmp_path, callback, attack, fast_dev_run=True)
        fit(tmp_path, callback, attack, max_epochs=1)
        assert callback.settings["budget"] == 10**6
        assert callback.history[-1].estimates[OFTEN].method == "exact"
        assert attack.extractions[PIN.name].settings["budget"] == 1_000_000

    def test_monitors_find_something_before_the_first_measurement(self, tmp_path: Path) -> None:
        stopping = EarlyStopping("exposure/mean", mode="max", patience=10)
        callback = ExposureCallback(CANARIES, CHARS, every_n_epochs=2)
        run = fit(tmp_path, callback, stopping, validate=True, max_epochs=3, val_check_interval=4)
        assert run.current_epoch == 3
        assert [measurement.epoch for measurement in callback.history] == [2, 3]

    def test_steps_of_several_batches_are_measured_once(self, tmp_path: Path) -> None:
        callback = ExposureCallback(CANARIES, CHARS, every_n_steps=1)
        run = fit(tmp_path, callback, validate=True, max_epochs=1, accumulate_grad_batches=3)
        assert [measurement.step for measurement in callback.history] == list(range(1, run.global_step + 1))

    def test_the_same_canaries_measured_in_two_ways(self, tmp_path: Path) -> None:
        one, two = (ExposureCallback(CANARIES, CHARS, method=method) for method in ("exact", "importance"))
        attacks = [ExtractionCallback(CANARIES, CHARS, name, verbose=False) for name in ("beam", "shortest_path")]
        run = fit(tmp_path, one, two, *attacks, max_epochs=1, logger=CSVLogger(tmp_path))
        assert {"exposure/mean", "exposure_2/mean"} <= run.callback_metrics.keys()
        assert [attack.name for attack in attacks] == ["extraction", "extraction_2"]


class TestResuming:
    @pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
    def test_a_resumed_run_continues_the_history(self, tmp_path: Path) -> None:
        first = ExposureCallback(CANARIES, CHARS)
        keeping = ModelCheckpoint(tmp_path, filename="last")
        fit(tmp_path, first, keeping, max_epochs=2, enable_checkpointing=True)
        again = ExposureCallback(CANARIES, CHARS)
        run = trainer(tmp_path, again, ModelCheckpoint(tmp_path), max_epochs=4, enable_checkpointing=True)
        # Lightning 2.5 has no such argument.
        safely = {"weights_only": True} if "weights_only" in inspect.signature(run.fit).parameters else {}
        run.fit(Model(), loader(BOTH), ckpt_path=tmp_path / "last.ckpt", **safely)
        assert [measurement.epoch for measurement in again.history] == [1, 2, 3, 4]
        assert again.history[:1] == first.history[:1]
        assert again.baseline_estimates == first.baseline_estimates

    def test_the_state_works_before_setup(self) -> None:
        callback = ExposureCallback(CANARIES, CHARS)
        callback.load_state_dict(callback.state_dict())
        assert callback.history == []


class Noisy(Model):
    """Draws random numbers even in eval mode, from every global generator."""

    def forward(self, tokens: Any, state: Any = None) -> Any:
        torch.rand(3), np.random.rand(), random.random()
        return super().forward(tokens, state)


class TestNoTrace:
    @pytest.mark.parametrize("make", [Model, Noisy])
    def test_weights_are_bit_for_bit_the_same_with_and_without(self, tmp_path: Path, make: type[Model]) -> None:
        weights = []
        for callbacks in (
            [],
            [ExposureCallback(BOTH, CHARS, every_n_steps=3), ExtractionCallback(BOTH, CHARS, verbose=False)],
        ):
            L.seed_everything(7, verbose=False)
            model = make()
            trainer(tmp_path, *callbacks, max_epochs=3).fit(model, loader(BOTH), loader(shuffle=False))
            weights.append(model.state_dict())
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

    def test_modes_random_states_and_grad_mode_come_back_also_after_an_exception(self) -> None:
        model = Model().train()
        model.drop.eval()
        modes = [part.training for part in model.modules()]
        states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()

        def disturb() -> None:
            with quiet(model):
                assert not torch.is_grad_enabled()
                model.train()
                torch.set_grad_enabled(True)
                torch.rand(5), np.random.rand(), random.random()
                raise RuntimeError("half way")

        with torch.autocast("cpu", dtype=torch.bfloat16):
            with pytest.raises(RuntimeError, match="half way"):
                disturb()
            assert torch.is_autocast_enabled("cpu")
        assert [part.training for part in model.modules()] == modes
        assert torch.is_grad_enabled()
        assert random.getstate() == states[0]
        assert np.array_equal(np.random.get_state()[1], states[1])
        assert torch.equal(torch.get_rng_state(), states[2])


class TestExtraction:
    def test_the_attack_finds_what_was_memorized_and_says_so(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        attack = ExtractionCallback(BOTH, CHARS)
        run = fit(tmp_path, attack, max_epochs=12, logger=CSVLogger(tmp_path))
        assert set(attack.extractions) == {PIN.name, KEY.name}
        assert OFTEN in attack.extracted
        assert attack.extractions[PIN.name].optimal
        printed = capsys.readouterr().err
        assert OFTEN in printed
        assert "proven" in printed
        with open(Path(run.logger.log_dir) / "metrics.csv") as file:  # type: ignore[union-attr,arg-type]
            assert [row["extraction/extracted"] for row in csv.DictReader(file) if row.get("extraction/extracted")]

    def test_it_may_attack_every_few_epochs(self, tmp_path: Path) -> None:
        attack = ExtractionCallback(CANARIES, CHARS, every_n_epochs=1, verbose=False, budget=50)
        run = fit(tmp_path, attack, max_epochs=1)
        assert "extraction/extracted" in run.callback_metrics

    def test_other_attacks_take_their_settings(self, tmp_path: Path) -> None:
        attack = ExtractionCallback(CANARIES, CHARS, algorithm="beam", width=7, top_k=2, verbose=False)
        fit(tmp_path, attack, max_epochs=1)
        assert attack.extractions[PIN.name].settings["width"] == 7


class TestBadInput:
    """Each is a clear error before training begins."""

    def test_no_canaries(self) -> None:
        with pytest.raises(ArgumentError, match="canaries is empty"):
            ExposureCallback(CanarySet([]), CHARS)
        with pytest.raises(ArgumentError, match=r"canaries is .*, of type list; expected a CanarySet"):
            ExposureCallback(["my pin is 1234"], CHARS)  # type: ignore[arg-type]

    def test_characters_missing_from_the_vocabulary(self, tmp_path: Path) -> None:
        few = CharTokenizer.from_text("my pin is 01")
        for callback in (ExposureCallback(CANARIES, few), ExtractionCallback(CANARIES, few)):
            model = Model()
            before = model.out.weight.clone()
            with pytest.raises(TokenizerError, match="needs what the tokenizer cannot spell"):
                fit(tmp_path, callback, model=model)
            assert torch.equal(before, model.out.weight)

    def test_no_tokenizer_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="tokenizer is None and the datamodule has no `tokenizer`"):
            fit(tmp_path, ExposureCallback(CANARIES))

    def test_a_model_that_gives_no_logits(self, tmp_path: Path) -> None:
        class Odd(Model):
            def forward(self, tokens: Any, state: Any = None) -> Any:
                logits, state = super().forward(tokens, state)
                return logits[..., 0], state

        with pytest.raises(ModelError, match="shape"):
            fit(tmp_path, ExposureCallback(CANARIES, CHARS), model=Odd())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"every_n_epochs": -1}, "every_n_epochs is -1"),
            ({"every_n_steps": 0}, "every_n_steps is 0"),
            ({"method": "guess"}, "method is 'guess'; expected one of"),
            ({"references": -1}, "references is -1"),
        ],
    )
    def test_arguments_out_of_range(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            ExposureCallback(CANARIES, CHARS, **options)

    @pytest.mark.parametrize(
        "options", [{"budget": 0}, {"top_k": 0}, {"stop": "never"}, {"algorithm": "beam", "width": 0}]
    )
    def test_values_the_attack_cannot_take_show_before_training(self, tmp_path: Path, options: dict[str, Any]) -> None:
        model = Model()
        before = model.out.weight.clone()
        with pytest.raises(ArgumentError, match=r" is (0|'never')"):
            fit(tmp_path, ExtractionCallback(CANARIES, CHARS, **options), model=model)
        assert torch.equal(before, model.out.weight)

    def test_a_tokenizer_larger_than_the_model_shows_before_training(self, tmp_path: Path) -> None:
        large = CharTokenizer([*CHARS.vocabulary, "X", "Y"])
        with pytest.raises(ModelError, match="Model and tokenizer must belong together"):
            fit(tmp_path, ExposureCallback(CANARIES, large, baseline=False))

    def test_two_formats_with_one_name(self) -> None:
        formats = [PIN, SecretFormat("my pin is ##")]
        with pytest.raises(ArgumentError, match="2 formats with the name 'my-pin-is'"):
            ExposureCallback(CanarySet.draw(formats, repetitions=[1], seed=0), CHARS)

    def test_settings_the_attack_does_not_have(self) -> None:
        with pytest.raises(ArgumentError, match="width is 5; expected a setting of 'shortest_path'"):
            ExtractionCallback(CANARIES, CHARS, width=5)
        with pytest.raises(ArgumentError, match="algorithm is 'guess'; expected one of"):
            ExtractionCallback(CANARIES, CHARS, algorithm="guess")


def test_a_part_of_the_module_can_be_measured(tmp_path: Path) -> None:
    class Holder(Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(
                torch.nn.Embedding(CHARS.vocab_size, 4), torch.nn.Linear(4, CHARS.vocab_size)
            )

    callback = ExposureCallback(CANARIES, CHARS, model=lambda module: module.inner)
    model = Holder()
    fit(tmp_path, callback, model=model, max_epochs=1)
    by_hand = measure_exposure(SecretTree(model.inner, PIN, CHARS), list(CANARIES.texts), precision=0.25)
    assert [estimate.bits for estimate in callback.history[-1].estimates.values()] == [e.bits for e in by_hand]


def test_references_are_scored_when_the_fit_ends(tmp_path: Path) -> None:
    callback = ExposureCallback(
        CanarySet.draw([PIN, SecretFormat("x #")], repetitions=[1], seed=0), CHARS, references=50
    )
    fit(tmp_path, callback, max_epochs=1)
    assert len(callback.scored_references[PIN.name].costs) == 50
    assert callback.scored_references[PIN.name].fit is not None
    assert callback.scored_references["x"].fit is None
