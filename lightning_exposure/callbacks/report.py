"""`ReportCallback`: the report of a training run, written when it ends."""

from __future__ import annotations

import os
import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure._checks import flag, refusal
from lightning_exposure._files import check_directory
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks._surroundings import callbacks_of
from lightning_exposure.errors import ArgumentError
from lightning_exposure.report import run_record, write_report
from lightning_exposure.report.figures.style import require

_REPORTED = ("ExposureCallback", "AuditCallback", "DifferentialPrivacy")
"""One of them has to be there: there is something to say of a run whose exposure nobody measures, if it is private."""


class ReportCallback(Callback):
    """Writes what all other callbacks know on one page when training ends: exposure, attack, epsilon, audit.

    In the directory are then `report.html`, self-contained, with the verdict first; `exposure.json`, the record, from
    which the page can be made again; and `model-card.md`, a section for a model card, without any secret. They are
    written also if the training ends with an error or with Ctrl-C, and say so; with `fast_dev_run` they are not.

    There has to be something to report of: an `ExposureCallback`, an `AuditCallback` or `DifferentialPrivacy`. Where
    nobody measures exposure, the page says so, and what is promised and what an audit has found.

    Its place among the callbacks does not matter. Whatever has a method `add_to_record` contributes: our callbacks, our
    data module, and yours.

    Args:
        directory: Where; it is made if need be.
        shared: Whether the page is to be passed on: then canaries are masked too, and no record is written.
        reveal: Whether to show all secrets in full.
        verbose: Print where the page is.

    Raises:
        ArgumentError: `directory` is no path.

    Example:
        >>> from lightning_exposure import CanarySet, ExposureCallback, SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4, 16], seed=0)
        >>> callbacks = [ExposureCallback(canaries), ReportCallback("report")]  # Trainer(callbacks=callbacks)
        >>> callbacks[-1].directory
        'report'
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        shared: bool = False,
        reveal: bool = False,
        verbose: bool = True,
    ) -> None:
        if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
            raise refusal("directory", directory, "the path of a directory", "For example 'report'.")
        self.directory = directory
        self.shared = flag("shared", shared)
        self.reveal = flag("reveal", reveal)
        self.verbose = flag("verbose", verbose)
        self._training = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before any training is paid for.

        Raises:
            ArgumentError: The directory is a file or cannot be written to, or there is nothing to report of.
            MissingExtraError: Matplotlib or Jinja2 is not installed.
        """
        self._training = False
        if stage != "fit":
            return
        if not any(_says_something(callback) for callback in callbacks_of(trainer)):
            raise ArgumentError(
                "ReportCallback is among the callbacks of the Trainer, and none that it could report of; expected an "
                "ExposureCallback, an AuditCallback or DifferentialPrivacy. Add ExposureCallback(canaries)."
            )
        for package in ("jinja2", "matplotlib"):
            require(package)
        if trainer.is_global_zero:
            check_directory("directory", self.directory)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From now on there is something to report."""
        self._training = not getattr(trainer, "fast_dev_run", False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the report: by now every other callback has ended the training."""
        if self._training:
            self._write(trainer, None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write what is known; the error itself is not held up by another one."""
        if not self._training:
            return
        self._training = False
        try:
            # What an error says may hold anything, so only its kind is written down.
            self._write(trainer, type(exception).__name__)
        except Exception as error:
            warnings.warn(f"ReportCallback: the report could not be written ({error!r}).", stacklevel=2)

    def _write(self, trainer: Trainer, interrupted: str | None) -> None:
        # In every process: what they know is put together.
        record = run_record(trainer, interrupted=interrupted)
        if trainer.is_global_zero:
            path = write_report(record, self.directory, shared=self.shared, reveal=self.reveal)
            if self.verbose:
                say(trainer, f"Report: {path}")


def _says_something(callback: Any) -> bool:
    return any(base.__name__ in _REPORTED for base in type(callback).__mro__)
