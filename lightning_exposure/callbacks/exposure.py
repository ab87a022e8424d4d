"""`ExposureCallback`: how exposed the canaries are, measured while a model trains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure.callbacks.metrics import exposure_metrics, refuse_names_of_summaries
from lightning_exposure.callbacks.progress import Update, status
from lightning_exposure.callbacks.quiet import quiet
from lightning_exposure.callbacks.trees import CanaryTrees, ModelOf, loggers_named, only_one_with_this_name
from lightning_exposure.errors import ArgumentError, FitError, ScoreError
from lightning_exposure.exposure import ExposureEstimate, SkewNormal, measure_exposure
from lightning_exposure.exposure.estimate import check_measurement
from lightning_exposure.language import SecretTree, Tokenizer
from lightning_exposure.report import wandb as to_wandb
from lightning_exposure.report.record import Measurement, References
from lightning_exposure.secrets import Canary, CanarySet
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
        samples: How many walks an estimate takes.
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
        >>> from lightning_exposure.language import CharTokenizer
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
        seed: int = 0,
        confidence: float = 0.95,
        baseline: bool = True,
        references: int = 1000,
        name: str = "exposure",
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
    ) -> None:
        _check(every_n_epochs, every_n_steps, references)
        check_measurement(method, budget, samples, confidence)
        self.canaries = canaries
        self.every_n_epochs = every_n_epochs
        self.every_n_steps = every_n_steps
        self.name = name
        self.history: list[Measurement] = []
        self.baseline: dict[str, ExposureEstimate] = {}
        self.references: dict[str, References] = {}
        self._settings: dict[str, Any] = {
            "method": method, "budget": budget, "samples": samples, "seed": seed, "confidence": confidence,
        }  # fmt: skip
        self._now = dict(self._settings)  # for the fit under way
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
        return {"every_n_epochs": self.every_n_epochs, "every_n_steps": self.every_n_steps, **self._settings}

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
        with quiet(pl_module):
            self._trees.build(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What an untrained or pretrained model already gives."""
        if self._takes_baseline and not self.baseline:
            self.baseline = self._measure(trainer, pl_module, "exposure before training").estimates
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
        metrics = self._measure_and_remember(trainer, pl_module)
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
        """The references of the paper, once."""
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
        self.history = [
            Measurement(**{**fields, "estimates": _estimates(fields["estimates"])}) for fields in state_dict["history"]
        ]
        self.baseline = _estimates(state_dict["baseline"])

    def _due(self, trainer: Trainer) -> bool:
        return self.every_n_epochs > 0 and (trainer.current_epoch + 1) % self.every_n_epochs == 0

    def _measured_at(self, step: int) -> bool:
        return bool(self.history) and self.history[-1].step == step

    def _measure_and_remember(self, trainer: Trainer, module: LightningModule) -> dict[str, float]:
        measurement = self._measure(trainer, module, "measuring exposure")
        self.history.append(measurement)
        self._last_step = measurement.step
        metrics = self._metrics(measurement)
        # To the loggers directly: through the module they would get step metrics only every `log_every_n_steps`, and
        # what is repeated for callbacks that monitor would reach them too.
        for logger in trainer.loggers:
            logger.log_metrics({**metrics, "epoch": trainer.current_epoch}, step=trainer.global_step)
        return metrics

    def _measure(self, trainer: Trainer, module: LightningModule, title: str) -> Measurement:
        start = time.perf_counter()
        with quiet(module), status(trainer, title) as update:
            found = self._trees.map(trainer, lambda tree, canaries: self._measure_format(tree, canaries, update))
        by_text = {estimate.secret: estimate for estimates in found.values() for estimate in estimates}
        return Measurement(
            epoch=trainer.current_epoch + 1,
            step=trainer.global_step,
            train_loss=None,
            val_loss=None,
            seconds=time.perf_counter() - start,
            estimates={canary.id: by_text[canary.text] for canary in self.canaries},
        )

    def _measure_format(self, tree: SecretTree, canaries: Sequence[Canary], update: Update) -> list[ExposureEstimate]:
        budget = self._now["budget"]
        return measure_exposure(
            tree,
            [canary.text for canary in canaries],
            progress=lambda expansions: update(f"{expansions:,} of at most {budget:,} nodes"),
            **self._now,
        )

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
        return exposure_metrics(self.name, measurement, self.baseline)

    def _send_chart(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            for logger in loggers_named(trainer, "WandbLogger"):
                to_wandb.log_history(logger.experiment, self.history, self.baseline, self.name)


def _estimates(plain: dict[str, Any]) -> dict[str, ExposureEstimate]:
    """What a state dict holds instead of estimates."""
    return {name: ExposureEstimate(**fields) for name, fields in plain.items()}


def _losses(trainer: Trainer) -> tuple[float | None, float | None]:
    """The epoch's training and validation loss, where the module logs them under the usual names."""
    metrics = trainer.callback_metrics

    def first(*names: str) -> float | None:
        return next((float(metrics[name]) for name in names if name in metrics), None)

    return first("train_loss_epoch", "train_loss", "train/loss"), first("val_loss", "val/loss")


def _check(every_n_epochs: int, every_n_steps: int | None, references: int) -> None:
    if not isinstance(every_n_epochs, int) or every_n_epochs < 0:
        raise ArgumentError(f"every_n_epochs is {every_n_epochs!r}; expected a whole number, 0 for never.")
    if every_n_steps is not None and every_n_steps < 1:
        raise ArgumentError(f"every_n_steps is {every_n_steps!r}; expected at least 1, or None.")
    if references < 0:
        raise ArgumentError(f"references is {references!r}; expected a number of secrets, 0 for none.")
