"""`ExposureLoop`: the measurement, the attack, the audit and the report around a training loop of one's own."""

from __future__ import annotations

import os
import warnings
from types import TracebackType
from typing import Any

from torch import nn

from lightning_exposure._checks import flag
from lightning_exposure._files import check_directory
from lightning_exposure._lightning import unwrapped
from lightning_exposure.errors import FitError
from lightning_exposure.measuring.loops._run import CanaryRun
from lightning_exposure.measuring.surroundings import Alone, Moment, Surroundings
from lightning_exposure.measuring.trees import SharedTrees
from lightning_exposure.report.figures.style import require
from lightning_exposure.report.pages.run import write_report
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.recording import run_record
from lightning_exposure.report.tables import extraction_table, verdict_table
from lightning_exposure.secrets import CanarySet, Redaction
from lightning_exposure.secrets.recorded_console import console_is_recorded
from lightning_exposure.tokenization import Tokenizer


class ExposureLoop:
    """Measures the exposure of canaries in a training loop of your own, attacks the model, audits it, and reports.

    The training run is not affected: the weights are bit for bit what they are without it, and the numbers are those
    that the Lightning callbacks give for the same weights. An error in the loop is reported, and goes on its way.

    Args:
        model: What is trained.
        canaries: What was inserted in the training data.
        tokenizer: How the model reads text.
        around: Where it runs: `Alone()`, or `FabricSurroundings(fabric)`; None: alone, and nothing is logged.
        report: A directory for the report of the run, as `write_report` makes it; None: there is none.
        verbose: Whether to print what the attack found when training ends.
        reveal: Whether to show what is no canary in full, and everything where it leaves the machine.
        **settings: As for `CanaryRun`: `every_n_epochs`, `every_n_steps`, `attack`, `audit`, and how to measure.

    Attributes:
        run: The measurements, the attack and the audit.
        epoch: How many epochs are finished.
        global_step: How many optimizer steps were taken.

    Raises:
        ArgumentError: An argument is out of range; it is named.

    Example:
        >>> import torch
        >>> from lightning_exposure import CanarySet, CharTokenizer, SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat("pin ####"), repetitions=[1, 4], seed=0)
        >>> model = torch.nn.Sequential(torch.nn.Embedding(14, 8), torch.nn.Linear(8, 14))
        >>> tokenizer = CharTokenizer.from_text("pin 0123456789")
        >>> with ExposureLoop(model, canaries, tokenizer, verbose=False) as exposure:
        ...     for epoch in range(2):
        ...         for batch in range(3):
        ...             exposure.after_step()  # behind optimizer.step()
        ...         metrics = exposure.after_epoch()
        >>> [measurement.step for measurement in exposure.run.history]
        [3, 6]
    """

    def __init__(
        self,
        model: nn.Module,
        canaries: CanarySet,
        tokenizer: Tokenizer | Any,
        around: Surroundings | None = None,
        *,
        report: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        reveal: bool = False,
        **settings: Any,
    ) -> None:
        self.run = CanaryRun(canaries, reveal=reveal, **settings)
        self.reveal = reveal
        self.model = unwrapped(model)
        self.epoch = 0
        self.global_step = 0
        self._tokenizer = tokenizer
        self._around: Surroundings = Alone() if around is None else around
        self._report = report
        self._verbose = flag("verbose", verbose)
        self._steps_before = 0

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes the report."""
        return self._around.rank == 0

    def __enter__(self) -> ExposureLoop:
        """Refuse what cannot work before any training is paid for; and measure what the model already gives.

        Raises:
            TokenizerError: The tokenizer cannot spell the formats.
            ModelError: No adapter fits the model.
            ArgumentError: Nothing can be written into the directory of the report.
        """
        if self._report is not None:
            for package in ("jinja2", "matplotlib"):
                require(package)
            if self.is_global_zero:
                check_directory("report", self._report)
        self.run.build(SharedTrees(), self.model, self._tokenizer)
        self.run.begin(self.model, self._around)
        return self

    def after_step(self) -> dict[str, float] | None:
        """Call it after every optimizer step. Measures if it is due, and returns what was logged, if anything."""
        self.global_step += 1
        return self.run.after_step(self.model, self._around, Moment(self.epoch + 1, self.global_step))

    def after_epoch(self, train_loss: float | None = None, val_loss: float | None = None) -> dict[str, float] | None:
        """Call it after every epoch. Measures if it is due, and returns what was logged, if anything.

        Args:
            train_loss: Of the epoch, for the report.
            val_loss: Of the epoch, for the report.

        Raises:
            FitError: No step was counted in this epoch.
        """
        if self.global_step == self._steps_before:
            raise FitError(
                f"after_epoch was called after {self.global_step} steps, as many as the last time; expected a call of "
                "after_step after every optimizer step, because weights are told apart by their step. Call it."
            )
        self.epoch, self._steps_before = self.epoch + 1, self.global_step
        metrics = self.run.after_epoch(self.model, self._around, Moment(self.epoch, self.global_step))
        if self.run.monitor.measured_at(self.global_step):
            self.run.monitor.note_losses(train_loss, val_loss)
        return metrics

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Measure, attack and audit the last weights, and report; after an error, report what is known."""
        if kind is None:
            self.run.finish(self.model, self._around, Moment(self.epoch, self.global_step, last=True))
            if self.run.attack is not None and self._verbose:
                here = Redaction(self.run.canaries, shared=console_is_recorded(), reveal=self.reveal)
                found = extraction_table(self.run.extractions, self.run.canaries, here)
                self._around.say(f"{found}\n\n{verdict_table(self.run.verdicts)}")
        if self._report is None or not self.is_global_zero:
            return
        record = run_record(self, interrupted=None if kind is None else kind.__name__)
        try:
            write_report(record, self._report, reveal=self.reveal)
        except Exception as problem:
            if kind is None:
                raise
            warnings.warn(f"ExposureLoop: the report could not be written ({problem!r}).", stacklevel=2)

    def add_to_record(self, record: RunRecord) -> None:
        """Put what was measured, attacked and audited into the record of the run."""
        self.run.add_to_record(record)
