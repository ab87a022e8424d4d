"""What `fit` and `demo` share: one training run, and what it leaves in its directory."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from lightning_exposure import __version__
from lightning_exposure._files import write_whole
from lightning_exposure.callbacks import ExposureCallback, ExtractionCallback
from lightning_exposure.cli._console import exposure_table, say
from lightning_exposure.cli._runs import CANARIES, CHECKPOINT, CONFIG, TOKENIZER
from lightning_exposure.cli._table import EpochTable
from lightning_exposure.cli.commands.extract import in_words
from lightning_exposure.cli.commands.report import report_if_possible
from lightning_exposure.data import TextDataModule
from lightning_exposure.errors import ArgumentError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.report import RunRecord
from lightning_exposure.report.recorded_console import console_is_recorded
from lightning_exposure.report.tables import extraction_table, verdict_table
from lightning_exposure.report.wandb import stay_offline_without_login
from lightning_exposure.secrets import CanarySet, Redaction
from lightning_exposure.tree import SecretTree


@dataclass(frozen=True)
class Run:
    """All that a training run is made of.

    Attributes:
        directory: Where it leaves its files; made when training begins.
        canaries: What is planted.
        data: The text; already set up, so that what is wrong with it shows before anything is written.
        model: What is trained.
        exposure: Measures during the training.
        extraction: Attacks after it.
        trainer: Settings of the Trainer.
        settings: Anything else worth remembering in the record.
        config: The options of the run, as YAML; None: there is no such file.
        wandb: The project at Weights & Biases to log to; None: none.
    """

    directory: Path
    canaries: CanarySet
    data: TextDataModule
    model: LanguageModel
    exposure: ExposureCallback
    extraction: ExtractionCallback
    trainer: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    wandb: str | None = None

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def train(self) -> None:
        """Train, measure and attack; leave everything in the directory, and say what came out."""
        trainer = self._make_trainer()
        # Model and data may both have a setting of one name, and Lightning logs such settings only if they are equal.
        self.data.save_hyperparameters({}, logger=False)
        if trainer.is_global_zero:
            self._begin()
        stay_offline_without_login(trainer.loggers)
        try:
            trainer.fit(self.model, self.data)
        except SystemExit as exit_:
            # Lightning turns Ctrl-C into an exit code of its own.
            if not trainer.interrupted:
                raise
            self._record(trainer.global_step).save(self.directory, reveal=self.extraction.reveal)
            raise KeyboardInterrupt from exit_
        trainer.save_checkpoint(self.directory / CHECKPOINT)
        if trainer.is_global_zero:
            self._conclude(trainer)

    def _begin(self) -> None:
        for format_ in self.canaries.by_format():
            # What would fail when training begins had better fail while there is no directory yet.
            SecretTree(self.model, format_, self.data.tokenizer)
        say(f"Run directory: {self.directory}")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.canaries.save(self.directory / CANARIES)
        self.data.tokenizer.save(self.directory / TOKENIZER)
        if self.config is not None:
            write_whole(self.directory / CONFIG, self.config, private=True)  # what an attacker knows may be in it

    def _make_trainer(self) -> pl.Trainer:
        settings = dict(self.trainer)
        # Directly in the directory of the run, and neither in a subdirectory nor under a version.
        loggers: list[Logger] = [CSVLogger(self.directory, name="", version="")]
        if self.wandb is not None:
            loggers.append(WandbLogger(project=self.wandb, save_dir=self.directory, config=dict(self.settings)))
        given = settings.pop("callbacks", None) or []
        theirs = given if isinstance(given, list) else [given]
        try:
            return pl.Trainer(
                logger=loggers,
                callbacks=[self.exposure, self.extraction, EpochTable(self.exposure), *theirs],
                default_root_dir=self.directory,
                **settings,
            )
        except (MisconfigurationException, ValueError, TypeError) as error:
            raise ArgumentError(f"trainer: {error}") from error

    def _record(self, steps: int) -> RunRecord:
        versions = {"lightning-exposure": __version__, **{name: version(name) for name in ("lightning", "torch")}}
        settings = {
            **self.settings,
            "parameters": self.parameters,
            "model": dict(self.model.hparams),
            "data": dict(self.data.hparams),
            "exposure": self.exposure.settings,
            "versions": {**versions, "python": platform.python_version()},
        }
        return RunRecord(
            canaries=self.canaries,
            settings=settings,
            baseline=self.exposure.baseline_estimates,
            history=self.exposure.history,
            references=self.exposure.scored_references,
            extractions=self.extraction.extractions,
            steps=steps,
        )

    def _conclude(self, trainer: pl.Trainer) -> None:
        record = self._record(trainer.global_step)
        record.save(self.directory, reveal=self.extraction.reveal)
        verdicts = record.verdicts
        recorded = console_is_recorded(trainer.loggers)
        redaction = Redaction(self.canaries, shared=recorded, reveal=self.extraction.reveal)
        say()
        if record.final is not None:
            estimates = {
                key: estimate.redacted(redaction, self.canaries[key].format)
                for key, estimate in record.final.estimates.items()
            }
            say(exposure_table(list(estimates), list(estimates.values()), [verdicts[key] for key in estimates]))
            say()
        say(extraction_table(record.extractions, self.canaries, redaction))
        for name, attack in record.extractions.items():
            say(f"{name}: {in_words(attack)}")
        say()
        say(verdict_table(verdicts))
        say()
        say(report_if_possible(record, self.directory))
        say(f"Verdict: {record.verdict}.")
