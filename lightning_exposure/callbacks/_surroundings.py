"""A Lightning Trainer as the surroundings of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._lightning import needs_all_processes
from lightning_exposure.callbacks._progress import say, status
from lightning_exposure.errors import ArgumentError
from lightning_exposure.measuring import Moment, Update, is_last, training_clock
from lightning_exposure.measuring.surroundings import gather_objects
from lightning_exposure.secrets import CanarySet, Redaction
from lightning_exposure.secrets.recorded_console import console_is_recorded
from lightning_exposure.tokenization import Tokenizer

Value = TypeVar("Value")


class TrainerSurroundings:
    """What a measurement asks of whatever trains the model, asked of a Trainer.

    Args:
        trainer: Of `lightning` or of `pytorch_lightning`.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self._trainer.global_rank

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self._trainer.world_size

    @property
    def is_sharded(self) -> bool:
        """Whether a forward of the model needs all processes."""
        return needs_all_processes(self._trainer.strategy)

    def gather(self, value: Value) -> list[Value]:
        """The value of each process, in every process."""
        return gather_objects(value, self.world_size)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send numbers to the loggers.

        To them directly: through the module they would get step metrics only every `log_every_n_steps`, and what is
        repeated for callbacks that monitor would reach them too.
        """
        for logger in self._trainer.loggers:
            logger.log_metrics({**metrics, "epoch": self._trainer.current_epoch}, step=step)

    def say(self, text: str) -> None:
        """Print once, above the progress bar if there is one."""
        say(self._trainer, text)

    def status(self, title: str) -> AbstractContextManager[Update]:
        """A line in the progress bar."""
        return status(self._trainer, title)

    def seconds(self) -> float:
        """Seconds of training in this process."""
        return training_clock()


def moment(trainer: Trainer, *, epoch_ended: bool) -> Moment:
    """Where a training run is, inside of an epoch or where it ends."""
    epochs, steps = trainer.current_epoch + 1, trainer.global_step
    may_stop = epochs >= (trainer.min_epochs or 0) and steps >= (trainer.min_steps or 0)
    last = is_last(
        epochs=epochs,
        max_epochs=trainer.max_epochs,
        steps=steps,
        max_steps=trainer.max_steps,
        epoch_ended=epoch_ended,
        stopping=trainer.should_stop and may_stop,
    )
    return Moment(epochs, steps, last)


def final_moment(trainer: Trainer) -> Moment:
    """When a training run has ended: the epoch that it ended in is counted already."""
    return Moment(trainer.current_epoch, trainer.global_step, last=True)


def show_to_monitors(pl_module: LightningModule, metrics: Mapping[str, float]) -> None:
    """Let callbacks that monitor something find it, within the training; the loggers have it already."""
    pl_module.log_dict(dict(metrics), logger=False)


def show_at_the_end(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """The same when training has ended, and nothing can be logged through the module any more."""
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})


def tokenizer_of(trainer: Trainer, given: Tokenizer | Any | None) -> Tokenizer | Any:
    """The tokenizer that was given, or else the datamodule's.

    Raises:
        ArgumentError: There is neither.
    """
    if given is not None:
        return given
    tokenizer = getattr(getattr(trainer, "datamodule", None), "tokenizer", None)
    if tokenizer is None:
        raise ArgumentError(
            "tokenizer is None and the datamodule has no `tokenizer`; expected an object with encode, decode and "
            "vocab_size. Pass the one the training data was encoded with."
        )
    return tokenizer


def callbacks_of(trainer: Trainer) -> list[Any]:
    """All callbacks of a trainer."""
    found: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return found


def console_redaction(trainer: Trainer, canaries: CanarySet, *, reveal: bool) -> Redaction:
    """What may be printed while a trainer trains: its loggers may record the console."""
    return Redaction(canaries, shared=console_is_recorded(trainer.loggers), reveal=reveal)


def loggers_named(trainer: Trainer, name: str) -> list[Any]:
    """The trainer's loggers of a class, from `lightning` or from `pytorch_lightning`."""
    return [logger for logger in trainer.loggers if any(base.__name__ == name for base in type(logger).__mro__)]
