"""`ExposureTrainerCallback`: the measurement, the attack, the audit and the report, in Hugging Face's Trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lightning_exposure._checks import refusal
from lightning_exposure._files import check_directory
from lightning_exposure.exposure import ExposureEstimate, MethodName
from lightning_exposure.extraction import Extraction
from lightning_exposure.integrations._trainer import (
    EndedRun,
    TransformersSurroundings,
    at_end_of_epoch,
    calling_handler,
    final_moment,
    go_first,
    moment,
    saved_states,
)
from lightning_exposure.integrations._training_data import check_planted, readable
from lightning_exposure.measuring import CanaryRun, Identity, ModelOf, SharedTrees, quiet
from lightning_exposure.privacy.audit.audit import AuditResult
from lightning_exposure.report.pages.run import write_report
from lightning_exposure.report.record import Measurement, References, RunRecord
from lightning_exposure.report.tables import extraction_table, verdict_table
from lightning_exposure.report.verdicts import Verdict
from lightning_exposure.secrets import CanarySet, Redaction
from lightning_exposure.tokenization import Tokenizer


class ExposureTrainerCallback(TrainerCallback):
    """Measures the exposure of canaries while a `transformers.Trainer` trains, attacks the model and audits it.

    Also for trainers that are built on it, such as TRL's `SFTTrainer`. The training run is not affected: the
    weights are bit for bit what they are without this callback, and the numbers are those that the Lightning callbacks
    give for the same weights.

    They are in `trainer.state.log_history`, go to whatever the Trainer reports to, and are among the metrics of every
    evaluation, so that `metric_for_best_model="exposure_low/max"` and `EarlyStoppingCallback` can use them. The names
    are those of `ExposureCallback`, `ExtractionCallback` and `AuditCallback`. A run that is resumed from a checkpoint
    continues its history. `DifferentialPrivacy` is for Lightning only.

    Args:
        canaries: What was inserted in the training data, with `lightning_exposure.data.inject_examples`.
        tokenizer: How the model reads text; None: the Trainer's `processing_class`.
        every_n_epochs: Measure after every n-th epoch, and when training ends; 0: only when training ends.
        every_n_steps: Measure after every n-th optimizer step, too; None: never.
        method: As for `measure_exposure`.
        budget: The largest number of expansions of an exact count.
        samples: The largest number of walks of an estimate.
        precision: Stop as soon as the interval of every canary is at most this many bits wide; None: spend what
            `samples` and `budget` allow.
        max_share: The largest share of the training time that a measurement may take, as in `ExposureCallback`.
        seed: The random seed of the walks.
        confidence: The confidence level of the intervals and of the audit's bound.
        baseline: Measure before training starts, too.
        references: How many uniformly drawn secrets are scored at the end, for the histogram of the paper.
        name: The first part of the metrics' names.
        model: Picks the next-token model (a module or a `StepModel`) out of the Trainer's model.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
        attack: Attack the model when training ends: True, or the arguments of `extract`, such as
            `{"algorithm": "beam", "width": 50}`; False: not.
        audit: Bound epsilon from below when training ends; None: if coins were tossed for some of the canaries,
            with `CanarySet.draw(..., holdout=0.5)`.
        delta: The delta of the audit's bound.
        report: A directory, for the report of the run, as `lightning_exposure.report.write_report(trainer, directory)`
            makes it at any time; None: it is not written.
        check_data: Refuse training data that contain a canary more or less often than it says, or as other tokens than
            are measured. Only data that are a list, a `datasets.Dataset` or made of tensors can be read.
        verbose: Print what the attack found when training ends.
        reveal: As for `ExtractionCallback`: whether everything is shown in full, also where it leaves the machine.

    Raises:
        ArgumentError: An argument is out of range; it is named.

    Example:
        >>> from lightning_exposure import CanarySet, SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4, 16], seed=0)
        >>> callback = ExposureTrainerCallback(canaries)  # Trainer(..., callbacks=[callback])
        >>> callback.history
        []
    """

    def __init__(
        self,
        canaries: CanarySet,
        tokenizer: Tokenizer | Any | None = None,
        *,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
        method: MethodName = "auto",
        budget: int = 100_000,
        samples: int = 4096,
        precision: float | None = 0.25,
        max_share: float | None = 0.05,
        seed: int = 0,
        confidence: float = 0.95,
        baseline: bool = True,
        references: int = 1000,
        name: str = "exposure",
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
        attack: bool | Mapping[str, Any] = True,
        audit: bool | None = None,
        delta: float = 1e-5,
        report: str | os.PathLike[str] | None = None,
        check_data: bool = True,
        verbose: bool = True,
        reveal: bool = False,
    ) -> None:
        self._run = CanaryRun(
            canaries,
            every_n_epochs=every_n_epochs,
            every_n_steps=every_n_steps,
            method=method,
            budget=budget,
            samples=samples,
            precision=precision,
            max_share=max_share,
            seed=seed,
            confidence=confidence,
            baseline=baseline,
            references=references,
            name=name,
            model=model,
            context=context,
            batch_size=batch_size,
            attack=attack,
            audit=audit,
            delta=delta,
            reveal=reveal,
        )
        self.canaries = canaries
        self.tokenizer = tokenizer
        self.name = name
        self.delta = delta
        self.report = report
        self.check_data = check_data
        self.verbose = verbose
        self.reveal = reveal
        self._identity = Identity.of(type(self).__name__, name, model, canaries)
        self._steps: int | None = None

    # ---- what was found -----------------------------------------------------------------------------------

    @property
    def history(self) -> list[Measurement]:
        """All measurements so far; a resumed run continues them."""
        return self._run.history

    @property
    def baseline_estimates(self) -> dict[str, ExposureEstimate]:
        """The estimates before training, by canary id; empty without a baseline."""
        return self._run.baseline_estimates

    @property
    def scored_references(self) -> dict[str, References]:
        """After training: reference log-perplexities by format name."""
        return self._run.scored_references

    @property
    def extractions(self) -> dict[str, Extraction]:
        """The attack at the end, by format name; empty without one."""
        return self._run.extractions

    @property
    def extracted(self) -> list[str]:
        """The ids of the canaries among the candidates of the attack."""
        return self._run.extracted

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """How many guesses find each canary, by its id."""
        return self.record().verdicts

    @property
    def result(self) -> AuditResult | None:
        """The audit at the end; None without one."""
        return self._run.result

    @property
    def settings(self) -> dict[str, Any]:
        """How it measures, for reports."""
        return self._run.settings

    def record(self, **settings: Any) -> RunRecord:
        """The run so far, as reports take it.

        Args:
            **settings: Anything else worth remembering.
        """
        record = RunRecord(CanarySet([]), settings)
        self.add_to_record(record)
        return record

    def add_to_record(self, record: RunRecord) -> None:
        """Put what was measured, attacked and audited into the record of the run."""
        record.steps = self._steps
        self._run.add_to_record(record)

    # ---- what the Trainer calls ---------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Refuse a tokenizer that cannot spell the formats as soon as there is a Trainer."""
        self._run.check(SharedTrees(), self._tokenizer(kwargs))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse what cannot work before any training is paid for; and measure what the model already gives.

        Raises:
            ArgumentError: No report can be written into `report`.
            TokenizerError: The tokenizer cannot spell the formats.
            ModelError: No adapter fits the model.
            DataError: The training data hold other canaries, or these as other tokens.
        """
        if self.report is not None and state.is_world_process_zero:
            check_directory("report", self.report)
        model, around = kwargs["model"], self._around(args, state, control, kwargs)
        go_first(around.handler, self)
        shared, tokenizer = SharedTrees(), self._tokenizer(kwargs)
        with quiet(model):
            self._check_data(shared, tokenizer, kwargs.get("train_dataloader"))
        self._run.build(shared, model, tokenizer)
        self._restore(state)
        self._steps = None
        self._run.begin(model, around, state.global_step)
        self._keep(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure every few steps, and after the last step of an epoch: a checkpoint may be saved before it ends."""
        model, around = kwargs["model"], self._around(args, state, control, kwargs)
        ended = at_end_of_epoch(state)
        now = moment(state, control, epoch_ended=ended)
        found = self._run.after_step(model, around, now)
        if ended:
            found = self._run.after_epoch(model, around, now) or found
        if found is not None:
            self._keep(state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measure an epoch that ended early."""
        model, around = kwargs["model"], self._around(args, state, control, kwargs)
        if self._run.after_epoch(model, around, moment(state, control, epoch_ended=True)) is not None:
            self._keep(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the losses that belong to the newest measurement."""
        losses = [(logs or {}).get(name) for name in ("loss", "eval_loss")]
        if self._run.monitor.measured_at(state.global_step) and losses != [None, None]:
            newest = self.history[-1]
            known = (newest.train_loss, newest.val_loss)
            self._run.monitor.note_losses(
                *(old if new is None else float(new) for new, old in zip(losses, known, strict=True))
            )
            self._keep(state)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Let what decides by an evaluation find the newest exposures in it."""
        if self._run.monitor.trees.trees:
            kwargs["metrics"].update(
                {f"eval_{name}": value for name, value in (self._run.monitor.newest_metrics() or {}).items()}
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The weights that the Trainer ends with: measure, attack, audit and report."""
        model, around = kwargs["model"], self._around(args, state, control, kwargs)
        now = final_moment(args, state)
        self._run.finish(model, around, now)
        self._steps = now.step
        self._keep(state)
        if self._run.attack is not None and self.verbose:
            here = Redaction(self.canaries, shared=around.console_is_recorded, reveal=self.reveal)
            around.say(f"{extraction_table(self.extractions, self.canaries, here)}\n\n{verdict_table(self.verdicts)}")
        if self.report is not None and state.is_world_process_zero:
            data = getattr(kwargs.get("train_dataloader"), "dataset", None)
            write_report(EndedRun(self, model, data), self.report, reveal=self.reveal)

    # ---- inside -------------------------------------------------------------------------------------------

    def _around(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, others: Mapping[str, Any]
    ) -> TransformersSurroundings:
        return TransformersSurroundings(args, state, control, others, calling_handler(sys._getframe()), self)

    def _tokenizer(self, given: Mapping[str, Any]) -> Any:
        found = given.get("processing_class") if self.tokenizer is None else self.tokenizer
        if found is None:
            raise refusal(
                "tokenizer",
                None,
                "a tokenizer, because the Trainer has no `processing_class`",
                "Pass the one the training data was encoded with.",
            )
        return getattr(found, "tokenizer", found) if self.tokenizer is None else found

    def _check_data(self, shared: SharedTrees, tokenizer: Any, loader: Any) -> None:
        dataset: Any = getattr(loader, "dataset", None)
        if self.check_data and readable(dataset):
            by_format = self._run.monitor.trees.by_format
            check_planted(dataset, {shared.spelling(format, tokenizer): by_format[format] for format in by_format})

    def _keep(self, state: TrainerState) -> None:
        """Put the state where the Trainer's checkpoints have theirs.

        Not as an `ExportableState`: the Trainer gives that back only if it is asked to, to a new callback that it makes
        from JSON, and mixes up two callbacks of one class.
        """
        saved_states(state)[self._identity.key(self.settings)] = self._run.state_dict()

    def _restore(self, state: TrainerState) -> None:
        """Continue what a checkpoint brought: a new run has none."""
        saved = saved_states(state)
        own = [key for key in saved if self._identity.owns(key)]
        key = self._identity.key(self.settings)
        if key not in own and len(own) != 1:
            return
        self._run.load_state_dict(saved[key if key in own else own[0]])
