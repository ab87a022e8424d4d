"""`EpochTable`: a training run on the screen, one row per epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lightning_exposure.callbacks import ExposureCallback
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.amounts import exposure_text
from lightning_exposure.report.verdicts import is_exact

_MOST_COLUMNS = 6
"""With more canaries than this there is no room for all: their mean and their maximum are shown."""

_CELL = len("29.9 [28.8,29.9]")


class EpochTable(Callback):
    """Prints a row per epoch: the losses and the exposure of each canary, with an interval where it is estimated.

    Rows are printed as soon as they are known, on a terminal above a progress bar of the running epoch. It must stand
    behind the callback whose measurements it shows.

    Args:
        exposure: What measures.
    """

    def __init__(self, exposure: ExposureCallback) -> None:
        self.exposure = exposure
        ids = [canary.id for canary in exposure.canaries]
        self._names = ids if len(ids) <= _MOST_COLUMNS else ["mean", "max"]
        self._widths = [5, 5, 5, *(max(len(name), _CELL) for name in self._names)]
        self._console = Console()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        terminal = self._console.is_terminal
        self._progress = Progress(*columns, console=self._console, transient=True, disable=not terminal)
        self._task = self._progress.add_task("")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The headings, and what was measured before training."""
        if not trainer.is_global_zero:
            return
        what = "of each canary" if len(self._names) == len(self.exposure.canaries) else "(mean and maximum of low ends)"
        self._print(f"Loss (train, val) in nats per token; exposure {what} in bits, [low,high] where estimated.")
        self._row(["epoch", "train", "val", *self._names])
        if self.exposure.baseline_estimates:
            self._row(["0", "-", "-", *self._cells(self.exposure.baseline_estimates)])
        if trainer.progress_bar_callback is None:
            self._progress.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A new bar."""
        title = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        self._progress.reset(self._task, total=trainer.num_training_batches, description=title)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """One step further."""
        self._progress.advance(self._task)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The row of the epoch, if it was measured."""
        history = self.exposure.history
        if trainer.is_global_zero and history and history[-1].step == trainer.global_step:
            now = history[-1]
            losses = ["-" if loss is None else f"{loss:.3f}" for loss in (now.train_loss, now.val_loss)]
            self._row([f"{now.epoch}", *losses, *self._cells(now.estimates)])
        # Until the next epoch begins; if there is none, this is what goes on.
        self._progress.reset(self._task, total=None, description="attacking")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No bar any more."""
        self._progress.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """No bar any more."""
        self._progress.stop()

    def _cells(self, estimates: Mapping[str, ExposureEstimate]) -> list[str]:
        if len(estimates) <= _MOST_COLUMNS:
            return [exposure_cell(estimate) for estimate in estimates.values()]
        lows = [estimate.low for estimate in estimates.values()]
        return [f"{sum(lows) / len(lows):.1f}", f"{max(lows):.1f}"]

    def _row(self, cells: Sequence[str]) -> None:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        self._print("  ".join(padded).rstrip())

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def exposure_cell(estimate: ExposureEstimate) -> str:
    """Exposure in few characters: a number if it is exact, else with its interval; a bound if it is only that.

    >>> from dataclasses import replace
    >>> exact = ExposureEstimate("a", 29.9, 29.9, 29.9, "exact", 1, 3.0, 29.9, False, 0.95, 9)
    >>> some = replace(exact, bits=7.25, low=7, high=7.5, method="importance")
    >>> exposure_cell(exact), exposure_cell(some), exposure_cell(replace(some, is_bound=True))
    ('29.9', '7.2 [7.0,7.5]', '>=7.0')
    """
    number = exposure_text(estimate, 1, ">=")
    one_number = estimate.is_bound or is_exact(estimate)
    return number if one_number else f"{number} [{estimate.low:.1f},{estimate.high:.1f}]"
