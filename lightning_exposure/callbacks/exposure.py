"""`ExposureCallback`: how exposed the canaries are, measured while a model trains."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure.callbacks._canary_callback import CanaryCallback
from lightning_exposure.callbacks._surroundings import (
    TrainerSurroundings,
    final_moment,
    loggers_named,
    moment,
    show_at_the_end,
    show_to_monitors,
)
from lightning_exposure.exposure import ExposureEstimate, MethodName
from lightning_exposure.measuring import ExposureMonitor, ModelOf, PriorSource, Schedule
from lightning_exposure.report import wandb as to_wandb
from lightning_exposure.report.record import Measurement, References, RunRecord
from lightning_exposure.report.recording import contributors_of
from lightning_exposure.secrets import CanarySet
from lightning_exposure.tokenization import Tokenizer


class ExposureCallback(CanaryCallback):
    """Measures the exposure of canaries every few epochs or steps and when training ends, and logs it.

    Works with any LightningModule that maps token ids to logits; the module needs to know nothing of it. The training
    run is not affected: the weights are bit for bit what they are without this callback.

    Logged through the module, so that `EarlyStopping` and `ModelCheckpoint` can monitor them: `exposure/<canary id>`,
    `exposure_low/<canary id>`, `exposure_high/<canary id>`, `exposure/max`, `exposure/mean`, `exposure_low/max`,
    `exposure_high/max`, `exposure/seconds`, and, beside what the model gave before it was trained,
    `exposure_gain/<canary id>`, `exposure_gain/mean`. For decisions, monitor `exposure_low/max`, the largest lower end
    of the intervals: point estimates vary with the sample.

    Args:
        canaries: What was inserted in the training data.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        every_n_epochs: Measure after every n-th epoch, and when training ends; 0: only when training ends.
        every_n_steps: Measure after every n-th optimizer step, too; None: never.
        method: As for `measure_exposure`.
        prior: What exposure is measured against, where secrets are not equally likely (birthdays, area codes): a module
            that has not seen the secrets; the path of a checkpoint of this module, from before it saw them;
            "without_adapters": this model of PEFT, with its adapters off; "before_training": the weights when the fit
            starts, for a model that is fine-tuned. These are kept once, on the CPU, and in every checkpoint, so that a
            resumed run does not take its own weights for them; weights that know nothing of the secrets cause an
            `UntrainedPriorWarning`. Numbers keep their names. None: all secrets are equally likely.
        budget: The largest number of expansions of an exact count.
        samples: The largest number of walks of an estimate.
        precision: Stop as soon as the interval of every canary is at most this many bits wide; None: spend what
            `samples` and `budget` allow.
        max_share: The largest share of the training time since the last measurement that a measurement may take; None:
            any. It learns how fast the model is from the measurements so far. One that is expected to take less than 5
            seconds, and the last one of a run, are never cut; where it shows only afterwards which one was the last,
            that one is measured again in full. A cut one has smaller caps, recorded in `history`: its numbers are as
            valid, with wider intervals. It is announced once, and `exposure/cut` is logged from then on.
        seed: The random seed of the walks.
        confidence: The confidence level of the intervals.
        baseline: Measure before training starts, too.
        references: How many uniformly drawn secrets are scored when the fit ends, for the histogram of the paper.
        name: The first part of the metrics' names. Of two callbacks with one name, the second logs under `name_2`; two
            with equal arguments need different names.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
        reveal: Whether loggers and checkpoints get the texts of the canaries in full; otherwise they are masked there:
            every blank is hidden, and equal texts have equal names.

    Attributes:
        history: All measurements so far; a resumed run continues it.
        baseline_estimates: The estimates before training, by canary id.
        scored_references: After the fit: reference log-perplexities by format name.

    Example:
        >>> from lightning_exposure import CanarySet, SecretFormat
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4, 16], seed=0)
        >>> callback = ExposureCallback(canaries, CharTokenizer.from_text(*canaries.texts), every_n_epochs=2)
        >>> callback.history
        []
    """

    def __init__(
        self,
        canaries: CanarySet,
        tokenizer: Tokenizer | None = None,
        *,
        every_n_epochs: int = 1,
        every_n_steps: int | None = None,
        method: MethodName = "auto",
        prior: PriorSource | None = None,
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
        reveal: bool = False,
    ) -> None:
        schedule = Schedule(every_n_epochs, every_n_steps)
        super().__init__(
            canaries, tokenizer, name=name, model=model, context=context, batch_size=batch_size, reveal=reveal
        )
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        self.prior = prior
        self.baseline = baseline
        self.references = references
        self._monitor = ExposureMonitor(
            self._trees,
            schedule,
            method=method,
            prior=prior,
            budget=budget,
            samples=samples,
            precision=precision,
            max_share=max_share,
            seed=seed,
            confidence=confidence,
            baseline=baseline,
            references=references,
            name=name,
            reveal=reveal,
        )

    @property
    def monitor(self) -> ExposureMonitor:
        """What measures, for callbacks that look at it, such as a gate."""
        return self._monitor

    @property
    def history(self) -> list[Measurement]:
        """All measurements so far."""
        return self._monitor.history

    @property
    def baseline_estimates(self) -> dict[str, ExposureEstimate]:
        """The estimates before training, by canary id; empty without a baseline."""
        return self._monitor.baseline_estimates

    @property
    def scored_references(self) -> dict[str, References]:
        """After the fit: reference log-perplexities by format name."""
        return self._monitor.scored_references

    @property
    def settings(self) -> dict[str, Any]:
        """How it measures, for reports."""
        return self._monitor.settings

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before any training is paid for."""
        super().setup(trainer, pl_module, stage)
        self._monitor.name = self.name

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model's forward; begin a new history, unless a checkpoint has just brought one; make the prior."""
        super().on_fit_start(trainer, pl_module)
        quick, resumed = bool(getattr(trainer, "fast_dev_run", False)), trainer.ckpt_path is not None
        self._monitor.begin(TrainerSurroundings(trainer), quick=quick, resumed=resumed)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What an untrained or pretrained model already gives."""
        self._monitor.take_baseline(pl_module, TrainerSurroundings(trainer), moment(trainer, epoch_ended=False))
        for logger in self._wandb_loggers(trainer):
            to_wandb.log_canaries(logger.experiment, self.canaries, self.name, reveal=self.reveal)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure every few steps."""
        now = moment(trainer, epoch_ended=False)
        metrics = self._monitor.after_step(pl_module, TrainerSurroundings(trainer), now)
        if metrics is not None:
            pl_module.log_dict(metrics, on_step=True, on_epoch=False, logger=False)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure here if the epoch ends with a validation: callbacks that monitor look right after it."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if trainer.is_last_batch:
            self._measure(trainer, pl_module)
        metrics = self._monitor.newest_metrics()
        if metrics is not None:  # callbacks that monitor must find something at every validation
            show_to_monitors(pl_module, metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure here if no validation did, and note the losses of the epoch."""
        if self._measure(trainer, pl_module):
            show_to_monitors(pl_module, self._monitor.newest_metrics() or {})
        if self._monitor.measured_at(trainer.global_step):
            self._monitor.note_losses(*_losses(trainer))
            self._send_chart(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last weights, if they were not measured or not in full; and the references of the paper, once."""
        metrics = self._monitor.finish(pl_module, TrainerSurroundings(trainer), final_moment(trainer))
        if metrics is not None:
            show_at_the_end(trainer, metrics)
            self._send_chart(trainer)
        for logger in self._wandb_loggers(trainer):
            to_wandb.log_estimates(logger.experiment, self.history[-1].estimates, self.name)
            if self.scored_references:
                to_wandb.log_references(logger.experiment, self.scored_references, self.name)

    def add_to_record(self, record: RunRecord) -> None:
        """Put all measurements into the record of the run."""
        self._monitor.add_to_record(record)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note in W&B what was done against memorization, so that runs can be grouped by it: all have told by now."""
        if loggers_named(trainer, "WandbLogger"):
            record = RunRecord(CanarySet([]))
            for part in contributors_of(trainer):  # in every process: some of them gather
                part.add_to_record(record)
            for logger in self._wandb_loggers(trainer):
                to_wandb.log_defences(logger.experiment, record)

    def state_dict(self) -> dict[str, Any]:
        """The history, as plain values; and the weights before training, if they are the prior."""
        return self._monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a history."""
        self._monitor.load_state_dict(state_dict)

    def _measure(self, trainer: Trainer, module: LightningModule) -> bool:
        """At the end of an epoch, if it is due."""
        now = moment(trainer, epoch_ended=True)
        return self._monitor.after_epoch(module, TrainerSurroundings(trainer), now) is not None

    def _send_chart(self, trainer: Trainer) -> None:
        for logger in self._wandb_loggers(trainer):
            to_wandb.log_history(logger.experiment, self.history, self.baseline_estimates, self.name)

    def _wandb_loggers(self, trainer: Trainer) -> list[Any]:
        return loggers_named(trainer, "WandbLogger") if trainer.is_global_zero else []


def _losses(trainer: Trainer) -> tuple[float | None, float | None]:
    """The epoch's training and validation loss, where the module logs them under the usual names."""
    metrics = trainer.callback_metrics

    def first(*names: str) -> float | None:
        return next((float(metrics[name]) for name in names if name in metrics), None)

    return first("train_loss_epoch", "train_loss", "train/loss"), first("val_loss", "val/loss")
