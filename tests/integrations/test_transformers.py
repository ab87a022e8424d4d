"""`ExposureTrainerCallback` in a real Trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

from lightning_exposure import CanarySet, ExposureCallback, SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.errors import ArgumentError, DataError, ModelError, TokenizerError
from lightning_exposure.integrations.transformers import ExposureTrainerCallback
from lightning_exposure.measuring import AuditWarning
from lightning_exposure.report import RunRecord
from tests.integrations.setups import CANARIES, OFTEN, PIN, TOKENIZER, examples, gpt2, same_weights, trainer


class Run:
    """A training of three epochs, with and without the callback."""

    def __init__(self, folder: Path) -> None:
        self.callback = ExposureTrainerCallback(CANARIES, TOKENIZER, verbose=False, report=folder / "report")
        self.folder = folder
        self.trainer = trainer(folder, self.callback)
        self.trainer.train()
        self.plain = trainer(folder)  # now, because a Trainer seeds the global generators when it is made
        self.plain.train()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


class TestATraining:
    def test_the_weights_are_bit_for_bit_those_without_it(self, run: Run) -> None:
        assert same_weights(run.trainer.model, run.plain.model)
        assert not same_weights(run.trainer.model, gpt2())

    def test_the_numbers_are_those_one_measures_by_hand(self, run: Run) -> None:
        tree = SecretTree(run.trainer.model, PIN, TOKENIZER)
        by_hand = measure_exposure(tree, list(CANARIES.texts), precision=0.25)
        assert list(run.callback.history[-1].estimates.values()) == by_hand
        assert run.callback.extractions["my-pin-is"].candidates == extract(tree, top_k=3).candidates

    def test_they_are_in_the_log_history_once_an_epoch(self, run: Run) -> None:
        logged = [entry for entry in run.trainer.state.log_history if "exposure/max" in entry]
        assert [entry["step"] for entry in logged] == [m.step for m in run.callback.history] == [4, 8, 12]
        assert [entry["epoch"] for entry in logged] == [m.epoch for m in run.callback.history] == [1, 2, 3]
        last = run.callback.history[-1].estimates[OFTEN.id]
        assert logged[-1][f"exposure/{OFTEN.id}"] == last.bits
        assert logged[-1][f"exposure_gain/{OFTEN.id}"] == last.bits - run.callback.baseline_estimates[OFTEN.id].bits
        assert [e["extraction/extracted"] for e in run.trainer.state.log_history if "extraction/extracted" in e] == [
            float(len(run.callback.extracted))
        ]

    def test_the_trainer_logs_its_losses_as_without_it(self, run: Run) -> None:
        losses = [[e["loss"] for e in one.state.log_history if "loss" in e] for one in (run.trainer, run.plain)]
        assert losses[0] == losses[1] == [m.train_loss for m in run.callback.history]

    def test_the_report_is_the_run(self, run: Run) -> None:
        record = RunRecord.load(run.folder / "report")
        assert record.history == run.callback.history
        assert record.verdicts == run.callback.verdicts
        assert record.steps == 12
        assert (run.folder / "report" / "report.html").read_text().count("<html") == 1

    def test_a_second_training_begins_a_new_history(self, tmp_path: Path) -> None:
        callback = ExposureTrainerCallback(CANARIES, TOKENIZER, attack=False)
        one = trainer(tmp_path, callback, num_train_epochs=1)
        one.train()
        one.train()
        assert [measurement.step for measurement in callback.history] == [4]


def test_the_same_exposures_as_under_lightning_on_the_same_weights(run: Run, tmp_path: Path) -> None:
    class Still(L.LightningModule):
        """Trains nothing: the weights are those that the Trainer of transformers ended with."""

        def __init__(self, lm: Any) -> None:
            super().__init__()
            self.lm = lm

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.lm(batch).logits.mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    callback = ExposureCallback(CANARIES, TOKENIZER)
    L.Trainer(
        callbacks=[callback], max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    ).fit(Still(run.trainer.model), torch.utils.data.DataLoader(torch.zeros(2, 4, dtype=torch.long)))  # fmt: skip
    assert callback.history[-1].estimates == run.callback.history[-1].estimates
    assert callback.scored_references == run.callback.scored_references


class TestWhen:
    @pytest.mark.parametrize(
        ("options", "steps"),
        [
            ({"every_n_epochs": 2}, [8, 12]),
            ({"every_n_epochs": 0}, [12]),
            ({"every_n_epochs": 0, "every_n_steps": 5}, [5, 10, 12]),
            ({"every_n_steps": 4}, [4, 8, 12]),
        ],
    )
    def test_every_few_epochs_or_steps_and_at_the_end(
        self, tmp_path: Path, options: dict[str, Any], steps: list[int]
    ) -> None:
        callback = ExposureTrainerCallback(CANARIES, TOKENIZER, attack=False, baseline=False, **options)
        trainer(tmp_path, callback).train()
        assert [measurement.step for measurement in callback.history] == steps
        assert callback.baseline_estimates == {}

    def test_an_end_in_mid_epoch(self, tmp_path: Path) -> None:
        callback = ExposureTrainerCallback(CANARIES, TOKENIZER, attack=False)
        trainer(tmp_path, callback, max_steps=6).train()
        assert [(measurement.epoch, measurement.step) for measurement in callback.history] == [(1, 4), (2, 6)]

    def test_gradient_accumulation_counts_optimizer_steps(self, tmp_path: Path) -> None:
        callback = ExposureTrainerCallback(CANARIES, TOKENIZER, attack=False)
        trainer(tmp_path, callback, gradient_accumulation_steps=2).train()
        assert [(measurement.epoch, measurement.step) for measurement in callback.history] == [(1, 2), (2, 4), (3, 6)]


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("saving", "restore"),
        [({"save_strategy": "epoch"}, False), ({"save_strategy": "steps", "save_steps": 4}, True)],
    )
    def test_a_resumed_run_continues_its_history(
        self, run: Run, tmp_path: Path, saving: dict[str, Any], restore: bool
    ) -> None:
        trainer(tmp_path, ExposureTrainerCallback(CANARIES, TOKENIZER, verbose=False), **saving).train()
        resumed = ExposureTrainerCallback(CANARIES, TOKENIZER, verbose=False)
        again = trainer(tmp_path, resumed, **saving, restore_callback_states_from_checkpoint=restore)
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
        found = [(measurement.step, measurement.estimates) for measurement in resumed.history]
        assert found == [(measurement.step, measurement.estimates) for measurement in run.callback.history]
        assert resumed.baseline_estimates == run.callback.baseline_estimates
        logged = [entry["step"] for entry in again.state.log_history if "exposure/max" in entry]
        assert logged == [4, 8, 12]
        assert same_weights(again.model, run.plain.model)

    def test_two_callbacks_keep_their_own(self, tmp_path: Path) -> None:
        def both() -> list[ExposureTrainerCallback]:
            return [
                ExposureTrainerCallback(CANARIES, TOKENIZER, attack=False, name=name, method=method)
                for name, method in (("exposure", "auto"), ("sampled", "sampling"))
            ]

        trainer(tmp_path, *both(), save_strategy="epoch", num_train_epochs=2).train()
        resumed = both()
        trainer(tmp_path, *resumed, num_train_epochs=2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert [[m.method for m in callback.history] for callback in resumed] == [["auto"] * 2, ["sampling"] * 2]

    def test_the_best_model_is_chosen_by_exposure_and_is_what_is_attacked(self, tmp_path: Path) -> None:
        callback = ExposureTrainerCallback(CANARIES, TOKENIZER, verbose=False)
        one = trainer(
            tmp_path, callback, save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True,
            metric_for_best_model="exposure_low/max", greater_is_better=False, num_train_epochs=4,
            eval_dataset=examples()[:4],
        )  # fmt: skip
        one.train()
        lows = [max(e.low for e in measurement.estimates.values()) for measurement in callback.history[:4]]
        best = callback.history[lows.index(min(lows))]
        assert one.state.best_global_step == best.step < 16
        assert callback.history[-1].step == best.step
        assert callback.history[-1].estimates == best.estimates
        tree = SecretTree(one.model, PIN, TOKENIZER)
        assert callback.extractions["my-pin-is"].candidates == extract(tree, top_k=3).candidates

    def test_early_stopping_sees_it_wherever_it_stands(self, tmp_path: Path) -> None:
        stopping = EarlyStoppingCallback(early_stopping_patience=1)
        one = trainer(
            tmp_path, stopping, ExposureTrainerCallback(CANARIES, TOKENIZER, attack=False), num_train_epochs=9,
            save_strategy="epoch", eval_strategy="epoch", load_best_model_at_end=True,
            metric_for_best_model="exposure/mean", greater_is_better=False, eval_dataset=examples()[:4],
        )  # fmt: skip
        one.train()
        assert one.state.epoch < 9


class TestWhoHearsOfIt:
    def test_whatever_the_trainer_reports_to_hears_of_it_before_it_closes(self, tmp_path: Path) -> None:
        class Reporter(TrainerCallback):
            heard: list[dict[str, Any]]
            is_open = False

            def on_train_begin(self, *_: Any, **__: Any) -> None:
                self.heard, self.is_open = [], True

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                assert self.is_open
                self.heard.append({**logs, "step": state.global_step})

            def on_train_end(self, *_: Any, **__: Any) -> None:
                self.is_open = False

        reporter = Reporter()
        one = trainer(tmp_path, reporter, ExposureTrainerCallback(CANARIES, TOKENIZER, verbose=False), max_steps=6)
        one.train()
        assert reporter.heard == one.state.log_history

    def test_only_the_first_process_logs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        class Second(Trainer):
            def is_world_process_zero(self) -> bool:
                return False

        callback = ExposureTrainerCallback(CANARIES, TOKENIZER, report=tmp_path / "report")
        first = trainer(tmp_path, callback, num_train_epochs=1)
        first.__class__ = Second
        first.train()
        assert callback.history
        assert not [entry for entry in first.state.log_history if "exposure/max" in entry]
        assert not (tmp_path / "report").exists()
        assert OFTEN.id not in capsys.readouterr().err

    def test_the_console_shows_a_summary_and_what_was_found(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        callback = ExposureTrainerCallback(CANARIES, TOKENIZER)
        trainer(tmp_path, callback, num_train_epochs=1).train()
        shown = capsys.readouterr()
        assert "exposure/max" in shown.out
        assert f"exposure_low/{OFTEN.id}" not in shown.out
        assert "how many guesses find it" in shown.err

    def test_a_progress_bar_goes_on(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        callback = ExposureTrainerCallback(CANARIES, TOKENIZER)
        trainer(tmp_path, callback, num_train_epochs=1, disable_tqdm=False).train()
        shown = capsys.readouterr().err
        assert "measuring exposure" in shown
        assert "4/4" in shown


class TestAudit:
    COINS = CanarySet.draw(PIN, repetitions=[1] * 24, seed=0, holdout=0.5)

    def test_coins_are_audited(self, tmp_path: Path) -> None:
        callback = ExposureTrainerCallback(self.COINS, TOKENIZER, attack=False, every_n_epochs=0)
        one = trainer(tmp_path, callback, data=examples(self.COINS), num_train_epochs=20)
        one.train()
        assert callback.result is not None
        assert callback.result.inserted == len(self.COINS.inserted)
        assert callback.result.auc > 0.7
        logged = [entry["audit/epsilon_lower"] for entry in one.state.log_history if "audit/epsilon_lower" in entry]
        assert logged == [callback.result.epsilon_lower]

    def test_an_audit_that_can_show_nothing_says_so(self, tmp_path: Path) -> None:
        coins = CanarySet.draw(PIN, repetitions=[1] * 4, seed=0, holdout=0.5)
        callback = ExposureTrainerCallback(coins, TOKENIZER, attack=False)
        with pytest.warns(AuditWarning, match="The audit has 4 canaries"):
            trainer(tmp_path, callback, data=examples(coins), max_steps=1).train()

    def test_without_coins_it_is_refused(self) -> None:
        with pytest.raises(ArgumentError, match="none drawn with a holdout"):
            ExposureTrainerCallback(CANARIES, TOKENIZER, audit=True)


class TestRefusals:
    """All of them before the first step."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"every_n_epochs": -1}, "every_n_epochs is -1; expected"),
            ({"budget": 0}, "budget is 0; expected"),
            ({"attack": "beam"}, "attack is 'beam'; expected True, False, or the arguments of `extract`"),
            ({"attack": {"algorithm": "luck"}}, "is 'luck'; expected one of"),
            ({"delta": 2.0}, "delta is 2.0; expected"),
        ],
    )
    def test_arguments(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            ExposureTrainerCallback(CANARIES, TOKENIZER, **options)

    def test_no_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="tokenizer is None; expected a tokenizer, because the Trainer has no"):
            trainer(tmp_path, ExposureTrainerCallback(CANARIES))

    def test_the_trainers_tokenizer_will_do(self, tmp_path: Path) -> None:
        callback = ExposureTrainerCallback(CANARIES, attack=False)
        one = Trainer(gpt2(), trainer(tmp_path).args, train_dataset=examples(), processing_class=TOKENIZER)
        one.add_callback(callback)
        one.args.max_steps = 1
        one.train()
        assert len(callback.history) == 1

    def test_a_format_that_the_tokenizer_cannot_spell(self, tmp_path: Path) -> None:
        canaries = CanarySet.draw(SecretFormat.regex("my pin is [A-Z]{2}"), repetitions=[1], seed=0)
        with pytest.raises(TokenizerError):
            trainer(tmp_path, ExposureTrainerCallback(canaries, TOKENIZER))

    def test_a_model_of_another_tokenizer(self, tmp_path: Path) -> None:
        model = gpt2()
        model.resize_token_embeddings(20)
        one = trainer(tmp_path, ExposureTrainerCallback(CANARIES, TOKENIZER), model=model)
        with pytest.raises(ModelError):
            one.train()
        assert one.state.global_step == 0

    @pytest.mark.parametrize(
        ("planted", "measured", "message"),
        [
            ([0, 1, 12], [0, 1, 4], "'my-pin-is-4x' is in the training data 12 times .* expected 4 copies"),
            ([0, 0, 12], [0, 1, 12], "'my-pin-is-1x' is in the training data not at all .* expected 1 copy"),
            ([2, 1, 12], [0, 1, 12], "'my-pin-is-0x' is in the training data 2 times .* expected 0 copies"),
        ],
    )
    def test_data_that_hold_other_canaries(
        self, tmp_path: Path, planted: list[int], measured: list[int], message: str
    ) -> None:
        data = examples(CanarySet.draw(PIN, repetitions=planted, seed=0))
        canaries = CanarySet.draw(PIN, repetitions=measured, seed=0)
        one = trainer(tmp_path, ExposureTrainerCallback(canaries, TOKENIZER), data=data)
        with pytest.raises(DataError, match=message) as error:
            one.train()
        assert one.state.global_step == 0
        assert not any(text in str(error.value) for text in canaries.texts)
        unchecked = ExposureTrainerCallback(canaries, TOKENIZER, check_data=False, verbose=False)
        trainer(tmp_path, unchecked, data=data, max_steps=1).train()
