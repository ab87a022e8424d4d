"""A run on disk after every epoch, with all that it takes to go on as if nothing had happened."""

from __future__ import annotations

import csv
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from lightning_exposure.cli._runs import CHECKPOINT, RESUME

METRICS = "metrics.csv"
_BEFORE = f"{RESUME}.before"
_NEW = f"{RESUME}.new"


class EpochSaver(Callback):
    """Saves a checkpoint after every epoch, and restores what a checkpoint does not hold by itself.

    It must be the last of the callbacks: what the others do at the end of an epoch belongs to it.

    Args:
        directory: Of the run.
        logger: Whose rows are kept when a run goes on.
    """

    def __init__(self, directory: Path, logger: CSVLogger) -> None:
        self._directory = directory
        self._logger = logger
        self._known = read_rows(directory / METRICS)  # the logger removes the file as soon as it begins
        self._epochs = 0
        self._restored: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """In a run that goes on: the rows up to the checkpoint, and the random numbers as they were."""
        if not self._restored:
            return
        if trainer.is_global_zero:
            rows = [row for row in self._known if int(row["epoch"]) < self._restored["epochs"]]
            self._logger.experiment.metrics[:0] = rows
            self._logger.save()
        restore_generators(self._restored["generators"])
        self._restored = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save; the checkpoint before this one stays until it is known that training goes on."""
        path, before, new = (self._directory / name for name in (RESUME, _BEFORE, _NEW))
        self._epochs = trainer.current_epoch + 1
        trainer.save_checkpoint(new)
        if not trainer.is_global_zero:
            return
        # A run may be killed at any moment: from the first epoch on there is always a checkpoint to go on from.
        if path.exists():
            before.unlink(missing_ok=True)
            _name_too(path, before)
        os.replace(new, path)

    def state_dict(self) -> dict[str, Any]:
        """The states of the generators of random numbers, and how many epochs are done."""
        return {"generators": generators(), "epochs": self._epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave; it takes effect when training begins."""
        self._restored = dict(state_dict)


class EndSaver(Callback):
    """Saves the weights when training ends, before anything is done with them; it must be the first of the callbacks.

    An attack may take long. A run that is interrupted in it goes on from the beginning of the last epoch: from its end
    Lightning would find nothing left to do, and measure nothing.

    Args:
        directory: Of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, and take back the checkpoint of the last epoch."""
        trainer.save_checkpoint(self._directory / CHECKPOINT)
        if not trainer.is_global_zero:
            return
        path, before = self._directory / RESUME, self._directory / _BEFORE
        if before.exists():
            os.replace(before, path)
        else:
            path.unlink(missing_ok=True)


def forget(directory: Path) -> None:
    """Remove what only a run that is not at its end needs."""
    for name in (RESUME, _BEFORE, _NEW):
        (directory / name).unlink(missing_ok=True)


def _name_too(path: Path, other: Path) -> None:
    """Give a file a second name, or copy it where a file has only one."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table, without its empty cells; none if there is no table."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file)]


def generators() -> dict[str, Any]:
    """The states of all global generators, as tensors and plain values: nothing has to be unpickled to read them."""
    version, numbers, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(numbers), gauss],
        "numpy": {**numpy, "state": {**numpy["state"], "key": numpy["state"]["key"].tolist()}},
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Put the global generators into the states that `generators` gave."""
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    state = states["numpy"]
    np.random.set_state({**state, "state": {**state["state"], "key": np.array(state["state"]["key"], dtype=np.uint32)}})
