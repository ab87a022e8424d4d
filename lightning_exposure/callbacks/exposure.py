"""`ExposureCallback`: how exposed the canaries are, measured while a model trains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure.callbacks._metrics import exposure_metrics, refuse_names_of_summaries
from lightning_exposure.callbacks._pace import Caps, Effort, Pace, is_last
from lightning_exposure.callbacks._progress import Update, say, status
from lightning_exposure.callbacks._trees import CanaryTrees, ModelOf, loggers_named, only_one_with_this_name
from lightning_exposure.callbacks.quiet import quiet, training_clock
from lightning_exposure.errors import ArgumentError, FitError, ScoreError
from lightning_exposure.exposure import ExposureEstimate, SkewNormal, measure_exposure
from lightning_exposure.exposure.estimate import check_measurement
from lightning_exposure.report import wandb as to_wandb
from lightning_exposure.report.record import Measurement, References
from lightning_exposure.secrets import Canary, CanarySet
from lightning_exposure.tokenization import Tokenizer
from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import uniform_walks


class ExposureCallback(Callback):
    """Measures the exposure of canaries every few epochs or steps, and logs it.

    Works with any LightningModule that maps token ids to logits; the module needs to know nothing of it. The training
    is not changed in the least: the weights are bit for bit what they are without this callback.

    Logged through the module, so that `EarlyStopping` and `ModelCheckpoint` can monitor them: `exposure/<canary id>`,
    `exposure_low/<canary id>`, `exposure_high/<canary id>`, `exposure/max`, `exposure/mean`, `exposure_low/max`,
    `exposure/seconds`, and, beside what the model gave before it was trained, `exposure_gain/<canary id>`,
    `exposure_gain/mean`. What decides something should monitor `exposure_low/max`, the largest exposure that is certain
    at the given confidence: a point may jump with the sample.

    Args:
        canaries: What was inserted in the training data.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        every_n_epochs: Measure at the end of every so many epochs; 0: never.
        every_n_steps: Measure after every so many optimizer steps too; None: not.
        method: As for `measure_exposure`.
        budget: The largest number of expansions of an exact count.
        samples: The largest number of walks of an estimate.
        precision: Stop as soon as the interval of every canary is at most so many bits wide; None: spend what `samples`
            and `budget` allow.
        max_share: The largest share of the training time since the last measurement that a measurement may take; None:
            any. It learns how fast the model is from the measurements so far. One that is expected to take less than 5
            seconds, and the last one of a run, are never cut; where it shows only afterwards which one was the last,
            that one is measured again in full. A cut one has smaller caps, which `history` says: its numbers are as
            true, with wider intervals. It is announced once, and `exposure/cut` is logged from then on.
        seed: Of the walks.
        confidence: Of the intervals.
        baseline: Measure before training starts, too.
        references: How many uniformly drawn secrets are scored when the fit ends, for the histogram of the paper.
        name: The first part of the metrics' names.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.

    Attributes:
        history: All measurements so far; a resumed run continues it.
        baseline: The estimates before training, by canary id.
        references: After the fit: reference log-perplexities by format name.

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
        method: str = "auto",
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
    ) -> None:
        _check(every_n_epochs, every_n_steps, references, max_share)
        check_measurement(method, budget, samples, confidence, precision)
        self.canaries = canaries
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        self.name = name
        self.history: list[Measurement] = []
        self.baseline: dict[str, ExposureEstimate] = {}
        self.references: dict[str, References] = {}
        self._settings: dict[str, Any] = {
            "method": method, "budget": budget, "samples": samples, "precision": precision, "seed": seed,
            "confidence": confidence,
        }  # fmt: skip
        self._now = dict(self._settings)  # for the fit under way
        self._timer: Callable[[], float] = time.perf_counter
        self._pace = Pace(max_share, training_clock)
        self._has_cut = False
        self._restored = False
        self._last_step = 0
        self._takes_baseline = baseline
        self._reference_count = references
        self._trees = CanaryTrees(canaries, tokenizer, model=model, context=context, batch_size=batch_size)
        refuse_names_of_summaries(canary.id for canary in canaries)

    @property
    def state_key(self) -> str:
        """Different for callbacks with different canaries or names, so that each finds its own state again."""
        how = ", ".join(map(str, self.settings.values()))
        return f"{type(self).__name__}[{', '.join(canary.id for canary in self.canaries)}; {how}]"

    @property
    def settings(self) -> dict[str, Any]:
        """How it measures, for reports."""
        when = {"every_n_epochs": self.every_n_epochs, "every_n_steps": self.every_n_steps}
        return {**when, **self._settings, "max_share": self._pace.max_share}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before any training is paid for."""
        if stage != "fit":
            return
        only_one_with_this_name(trainer, self)
        self._trees.check(trainer)
        self._now = dict(self._settings)
        if getattr(trainer, "fast_dev_run", False):
            # An exact count may need more than a quick trial should take.
            method = "auto" if self._settings["method"] == "exact" else self._settings["method"]
            self._now |= {"method": method, "budget": 1000, "samples": 64}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try the model's forward; and begin a new history, unless a checkpoint has just brought one."""
        if not self._restored:
            self.history, self.baseline, self.references = [], {}, {}
        self._restored, self._last_step = False, self.history[-1].step if self.history else 0
        self._has_cut = False
        self._pace.begin([self._effort(measurement) for measurement in self.history])
        with quiet(pl_module):
            self._trees.build(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What an untrained or pretrained model already gives."""
        if self._takes_baseline and not self.baseline:
            self.baseline = self._measure(trainer, pl_module, "exposure before training", last=False).estimates
        for logger in loggers_named(trainer, "WandbLogger"):
            if trainer.is_global_zero:
                to_wandb.log_canaries(logger.experiment, self.canaries, self.name)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure every few steps."""
        step = trainer.global_step
        # A step may take several batches, and several optimizers take several steps at once.
        if not self.every_n_steps or step // self.every_n_steps == self._last_step // self.every_n_steps:
            return
        metrics = self._measure_and_remember(trainer, pl_module, epoch_ended=False)
        pl_module.log_dict(metrics, on_step=True, on_epoch=False, logger=False)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure here if the epoch ends with a validation: callbacks that monitor look right after it."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if trainer.is_last_batch and self._due(trainer) and not self._measured_at(trainer.global_step):
            pl_module.log_dict(self._measure_and_remember(trainer, pl_module), logger=False)
        elif self.history:
            pl_module.log_dict(self._metrics(self.history[-1]), logger=False)
        elif self.baseline:  # callbacks that monitor must find something from the first validation on
            before = Measurement(epoch=0, step=0, train_loss=None, val_loss=None, seconds=0.0, estimates=self.baseline)
            pl_module.log_dict(self._metrics(before), logger=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure here if no validation did, and note the losses of the epoch."""
        if self._due(trainer) and not self._measured_at(trainer.global_step):
            pl_module.log_dict(self._measure_and_remember(trainer, pl_module), logger=False)
        if self.history and self._measured_at(trainer.global_step):
            train_loss, val_loss = _losses(trainer)
            self.history[-1] = replace(self.history[-1], train_loss=train_loss, val_loss=val_loss)
            self._send_chart(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last measurement in full, if it was cut, and the references of the paper, once."""
        if self.history and self.history[-1].cut:
            self._measure_again(trainer, pl_module)
        if not self._reference_count:
            return
        with quiet(pl_module), status(trainer, "scoring references"):
            found = self._trees.map(trainer, self._score_references)
        self.references = {format.name: references for format, references in found.items()}
        if trainer.is_global_zero:
            for logger in loggers_named(trainer, "WandbLogger"):
                to_wandb.log_references(logger.experiment, self.references, self.name)

    def state_dict(self) -> dict[str, Any]:
        """The history, as plain values."""
        return {
            "history": [asdict(measurement) for measurement in self.history],
            "baseline": {name: estimate.to_dict() for name, estimate in self.baseline.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a history."""
        self._restored = True
        self.history = [Measurement.from_dict(fields) for fields in state_dict["history"]]
        self.baseline = {name: ExposureEstimate(**fields) for name, fields in state_dict["baseline"].items()}

    def _due(self, trainer: Trainer) -> bool:
        return self.every_n_epochs > 0 and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _measured_at(self, step: int) -> bool:
        return bool(self.history) and self.history[-1].step == step

    def _measure_and_remember(
        self, trainer: Trainer, module: LightningModule, *, epoch_ended: bool = True
    ) -> dict[str, float]:
        measurement = self._measure(trainer, module, "measuring exposure", last=self._is_last(trainer, epoch_ended))
        self.history.append(measurement)
        self._last_step = measurement.step
        return self._log(trainer, measurement)

    def _measure_again(self, trainer: Trainer, module: LightningModule) -> None:
        """In full: the training has ended, so nothing is held up any more."""
        before = self.history[-1]
        now = self._measure(trainer, module, "measuring exposure", last=True)
        if now.step == before.step:
            self.history[-1] = replace(now, epoch=before.epoch, train_loss=before.train_loss, val_loss=before.val_loss)
        else:  # the epoch in which the training ended is counted already
            self.history.append(replace(now, epoch=trainer.current_epoch))
        metrics = self._log(trainer, self.history[-1])
        # Nothing can be logged through the module any more.
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        self._send_chart(trainer)

    def _log(self, trainer: Trainer, measurement: Measurement) -> dict[str, float]:
        """Send a measurement to the loggers.

        To them directly: through the module they would get step metrics only every `log_every_n_steps`, and what is
        repeated for callbacks that monitor would reach them too.
        """
        metrics = self._metrics(measurement)
        for logger in trainer.loggers:
            logger.log_metrics({**metrics, "epoch": trainer.current_epoch}, step=trainer.global_step)
        return metrics

    def _measure(self, trainer: Trainer, module: LightningModule, title: str, *, last: bool) -> Measurement:
        caps = self._caps(trainer, last=last)
        arguments = {**self._now, "method": caps.method, "samples": caps.samples, "budget": caps.budget}
        start = self._timer()
        with quiet(module), status(trainer, title) as update:
            found = self._trees.map(trainer, lambda tree, members: _measure_format(tree, members, arguments, update))
        by_text = {estimate.secret: estimate for estimates in found.values() for estimate in estimates}
        measurement = Measurement(
            epoch=trainer.current_epoch + 1,
            step=trainer.global_step,
            train_loss=None,
            val_loss=None,
            seconds=self._timer() - start,
            estimates={canary.id: by_text[canary.text] for canary in self.canaries},
            cut=caps.cut,
            **{name: arguments[name] for name in ("method", "samples", "budget", "seed", "precision")},
        )
        self._pace.done(self._effort(measurement))
        return measurement

    def _caps(self, trainer: Trainer, *, last: bool) -> Caps:
        """What the next measurement may take: the first process decides for all, by its own clock."""
        asked = Caps(self._now["method"], self._now["samples"], self._now["budget"])
        if self._pace.max_share is None:
            return asked
        depths = [self._trees.trees[format].automaton.depth for format in self._trees.by_format]
        caps: Caps = trainer.strategy.broadcast(self._pace.caps(asked, depths, last=last))
        if caps.cut and not self._has_cut:
            self._has_cut = True
            say(
                trainer,
                f"{self.name}: a measurement in full is expected to take {caps.expected:.0f} s, more than "
                f"max_share={self._pace.max_share:g} of the training since the last one. This one is cut to "
                f"{caps.samples:,} samples and a budget of {caps.budget:,}; others may be, but not the last one.",
            )
        return caps

    def _is_last(self, trainer: Trainer, epoch_ended: bool) -> bool:
        """Whether no other measurement of this run will follow, as far as that is known."""
        epochs, steps = trainer.current_epoch + 1, trainer.global_step
        may_stop = epochs >= (trainer.min_epochs or 0) and steps >= (trainer.min_steps or 0)
        return is_last(
            epochs=epochs,
            max_epochs=trainer.max_epochs,
            steps=steps,
            max_steps=trainer.max_steps,
            every_n_epochs=self.every_n_epochs,
            every_n_steps=self.every_n_steps,
            epoch_ended=epoch_ended,
            stopping=trainer.should_stop and may_stop,
        )

    def _effort(self, measurement: Measurement) -> Effort:
        """What a measurement took: the canaries of a format share their walks."""
        by_format: dict[str, int] = {}
        for canary in self.canaries:
            spent = measurement.estimates[canary.id].expansions
            by_format[canary.format.name] = max(spent, by_format.get(canary.format.name, 0))
        return Effort(sum(by_format.values()), measurement.seconds, measurement.cut)

    def _score_references(self, tree: SecretTree, canaries: Sequence[Canary]) -> References:
        exclude = [canary.text for canary in canaries]
        count = min(self._reference_count, tree.size - len(exclude))
        if count < 1:
            return References([])
        costs = uniform_walks(tree, count, seed=self._settings["seed"], exclude=exclude).costs
        try:
            return References(costs.tolist(), SkewNormal.fit(costs))
        except (FitError, ScoreError):
            # A tiny format, or a model that does not tell secrets apart: the histogram stands alone.
            return References(costs.tolist())

    def _metrics(self, measurement: Measurement) -> dict[str, float]:
        metrics = exposure_metrics(self.name, measurement, self.baseline)
        return {**metrics, f"{self.name}/cut": float(measurement.cut)} if self._has_cut else metrics

    def _send_chart(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            for logger in loggers_named(trainer, "WandbLogger"):
                to_wandb.log_history(logger.experiment, self.history, self.baseline, self.name)


def _measure_format(
    tree: SecretTree, canaries: Sequence[Canary], arguments: dict[str, Any], update: Update
) -> list[ExposureEstimate]:
    budget = arguments["budget"]
    return measure_exposure(
        tree,
        [canary.text for canary in canaries],
        progress=lambda expansions: update(f"{expansions:,} of at most {budget:,} nodes"),
        **arguments,
    )


def _losses(trainer: Trainer) -> tuple[float | None, float | None]:
    """The epoch's training and validation loss, where the module logs them under the usual names."""
    metrics = trainer.callback_metrics

    def first(*names: str) -> float | None:
        return next((float(metrics[name]) for name in names if name in metrics), None)

    return first("train_loss_epoch", "train_loss", "train/loss"), first("val_loss", "val/loss")


def _check(every_n_epochs: int, every_n_steps: int | None, references: int, max_share: float | None) -> None:
    if not isinstance(every_n_epochs, int) or every_n_epochs < 0:
        raise ArgumentError(f"every_n_epochs is {every_n_epochs!r}; expected a whole number, 0 for never.")
    if every_n_steps is not None and every_n_steps < 1:
        raise ArgumentError(f"every_n_steps is {every_n_steps!r}; expected at least 1, or None.")
    if references < 0:
        raise ArgumentError(f"references is {references!r}; expected a number of secrets, 0 for none.")
    if max_share is not None and not 0 < max_share < math.inf:
        raise ArgumentError(
            f"max_share is {max_share!r}; expected a positive share of the training time, for example 0.05, or None "
            "for no limit."
        )
