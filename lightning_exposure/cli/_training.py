"""What `fit` and `demo` share: one training run, and what it leaves in its directory."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from lightning_exposure._files import write_whole
from lightning_exposure.callbacks import AuditCallback, DifferentialPrivacy, ExposureCallback, ExtractionCallback
from lightning_exposure.cli._console import exposure_table, say
from lightning_exposure.cli._locking import LOCK, locked
from lightning_exposure.cli._runs import AUDIT_CANARIES, CANARIES, CHECKPOINT, CONFIG, RESUME, TOKENIZER, not_new
from lightning_exposure.cli._saving import EndSaver, EpochSaver, forget
from lightning_exposure.cli._table import EpochTable
from lightning_exposure.cli.commands.extract import in_words
from lightning_exposure.cli.commands.report import report_if_possible
from lightning_exposure.cli.models import check_plain, find_tokenizer
from lightning_exposure.data import CanaryDataModule, TextDataModule
from lightning_exposure.errors import ArgumentError, ManifestError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.report import RunRecord, run_record
from lightning_exposure.report.record import FILE_NAME as RECORD
from lightning_exposure.report.tables import extraction_table, verdict_table
from lightning_exposure.report.wandb import stay_offline_without_login
from lightning_exposure.secrets import CanarySet, Redaction
from lightning_exposure.secrets.recorded_console import console_is_recorded
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
        privacy: Trains with differential privacy; None: without.
        audit: Checks that promise; None: nothing does.
        resumed: Whether the directory is that of a run that was interrupted, and goes on.
    """

    directory: Path
    canaries: CanarySet
    data: TextDataModule | CanaryDataModule
    model: LanguageModel
    exposure: ExposureCallback
    extraction: ExtractionCallback
    trainer: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: str | None = None
    wandb: str | None = None
    privacy: DifferentialPrivacy | None = None
    audit: AuditCallback | None = None
    resumed: bool = False

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def train(self) -> None:
        """Train, measure and attack; leave everything in the directory, and say what came out.

        Raises:
            ArgumentError: Another process is training there.
        """
        for format_ in self.canaries.by_format():
            # What would fail when training begins had better fail while there is no directory yet.
            SecretTree(self.model, format_, self._data.tokenizer)
        trainer = self._make_trainer()
        if "LOCAL_RANK" in os.environ:  # started by a process that holds the lock
            self._train(trainer)
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        with locked(self.directory):
            self._check_directory()
            self._train(trainer)

    def _train(self, trainer: pl.Trainer) -> None:
        # Model and data may both have a setting of one name, and Lightning logs such settings only if they are equal.
        self._data.save_hyperparameters({}, logger=False)
        if trainer.is_global_zero:
            self._begin()
        stay_offline_without_login(trainer.loggers)
        try:
            trainer.fit(self.model, self._data, **self._where_to_go_on())
        except SystemExit as exit_:
            # Lightning turns Ctrl-C into an exit code of its own.
            if not trainer.interrupted:
                raise
            record = self._record(trainer, interrupted="KeyboardInterrupt")
            record.save(self.directory, reveal=self.extraction.reveal)
            raise KeyboardInterrupt from exit_
        trainer.save_checkpoint(self.directory / CHECKPOINT)
        record = self._record(trainer)
        if trainer.is_global_zero:
            self._conclude(record, recorded=console_is_recorded(trainer.loggers))

    @property
    def _data(self) -> Any:
        """A data module, whichever it is."""
        return self.data

    # ---- the directory ------------------------------------------------------------------------------------

    def _check_directory(self) -> None:
        """With the lock: is it still new, or still the one to go on with?"""
        if not self.resumed:
            if any(path.name != LOCK for path in self.directory.iterdir()):
                raise not_new(self.directory)
            return
        record = self.directory / RECORD
        if record.exists() and RunRecord.load(record).interrupted is None:
            raise ArgumentError(
                f"--resume is {str(self.directory)!r}, which came to its end; expected a run that was interrupted. "
                "Train a new one with --config and its config.yaml."
            )
        same = {
            CANARIES: CanarySet.load(self.directory / CANARIES) == self.canaries,
            TOKENIZER: find_tokenizer(self.directory) == self._data.tokenizer,
        }
        for name, alike in same.items():
            if not alike:
                raise ManifestError(
                    f"{self.directory / name} is not what {CONFIG} and the text lead to; expected the text and the "
                    "version of this library that the run began with. Put them back, or begin a new run."
                )

    def _begin(self) -> None:
        say(f"Run directory: {self.directory}")
        if self.resumed:
            return
        self.canaries.save(self.directory / CANARIES)
        if self.audit is not None:
            self.audit.canaries.save(self.directory / AUDIT_CANARIES)
        self._data.tokenizer.save(self.directory / TOKENIZER)
        if self.config is not None:
            write_whole(self.directory / CONFIG, self.config, private=True)  # what an attacker knows may be in it

    def _where_to_go_on(self) -> dict[str, Any]:
        """What `Trainer.fit` is told of the checkpoint; nothing if there is none, for then it begins anew."""
        path = self.directory / RESUME
        if not self.resumed or not path.exists():
            return {}
        check_plain(path)
        # Older versions have no such argument; what is in the file is known to be plain by now.
        known = inspect.signature(pl.Trainer.fit).parameters
        return {"ckpt_path": path, **({"weights_only": True} if "weights_only" in known else {})}

    # ---- the training -------------------------------------------------------------------------------------

    def _make_trainer(self) -> pl.Trainer:
        settings = dict(self.trainer)
        # Directly in the directory of the run, and neither in a subdirectory nor under a version.
        table = CSVLogger(self.directory, name="", version="")
        loggers: list[Logger] = [table]
        if self.wandb is not None:
            loggers.append(WandbLogger(project=self.wandb, save_dir=self.directory, config=dict(self.settings)))
        given = settings.pop("callbacks", None) or []
        theirs = given if isinstance(given, list) else [given]
        ours = [self.privacy, self.exposure, self.extraction, self.audit, EpochTable(self.exposure)]
        callbacks = [each for each in (EndSaver(self.directory), *ours, *theirs) if each is not None]
        callbacks.append(EpochSaver(self.directory, table))
        try:
            return pl.Trainer(logger=loggers, callbacks=callbacks, default_root_dir=self.directory, **settings)
        except (MisconfigurationException, ValueError, TypeError) as error:
            raise ArgumentError(f"trainer: {error}") from error

    # ---- what came out ------------------------------------------------------------------------------------

    def _record(self, trainer: pl.Trainer, interrupted: str | None = None) -> RunRecord:
        settings = {
            **self.settings,
            "parameters": self.parameters,
            "model": dict(self.model.hparams),
            "data": dict(self._data.hparams),
        }
        return run_record(trainer, settings=settings, interrupted=interrupted)

    def _conclude(self, record: RunRecord, *, recorded: bool) -> None:
        record.save(self.directory, reveal=self.extraction.reveal)
        forget(self.directory)
        verdicts = record.verdicts
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
        for line in self._promises():
            say(line)
        say(report_if_possible(record, self.directory))
        say(f"Verdict: {record.verdict}.")

    def _promises(self) -> list[str]:
        """What privacy was promised, and what an audit says to that."""
        lines = []
        if self.privacy is not None:
            lines.append(
                f"Privacy: epsilon is {self.privacy.epsilon:.3g} at delta {self.privacy.delta:g}, for one window of "
                f"the text (noise multiplier {self.privacy.noise_multiplier_:.3g})."
            )
        result = None if self.audit is None else self.audit.result
        if result is not None:
            lines.append(
                f"Audit: epsilon is at least {result.epsilon_lower:.3g} (confidence {result.confidence:g}), from "
                f"{result.inserted} canaries that were in and {result.held_out} that were not."
            )
        return lines
