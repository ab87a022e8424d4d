"""A training step run once more, with nothing logged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lightning_exposure._lightning import silent_logger, takes_batch_index

_LOGS = ("log", "log_dict", "print")
"""The methods of a module by which it says something."""


def run_step(trainer: Any, module: Any, batch: Any, batch_idx: int) -> Any:
    """What the training step of a module, or of a copy of it, makes of a batch, in the precision of the Trainer.

    Args:
        trainer: That trains.
        module: What is trained.
        batch: Any batch.
        batch_idx: What the step is told, if it wants to know.
    """
    step = module.training_step
    with trainer.precision_plugin.train_step_context():
        return step(batch, batch_idx) if takes_batch_index(step) else step(batch)


def loss_of(outputs: Any) -> Tensor | None:
    """The loss in what a training step has returned; None if there is none."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return loss if isinstance(loss, Tensor) else None


def silence(module: Any) -> None:
    """Let a module say nothing from now on."""
    vars(module).update(dict.fromkeys(_LOGS, _nothing))


@contextlib.contextmanager
def silenced(module: Any) -> Iterator[None]:
    """Inside, a module says nothing."""
    attributes = vars(module)
    before = {name: attributes[name] for name in _LOGS if name in attributes}
    silence(module)
    try:
        yield
    finally:
        for name in _LOGS:
            attributes.pop(name, None)
        attributes.update(before)


@contextlib.contextmanager
def without_loggers(trainer: Any) -> Iterator[None]:
    """Inside, whatever is given to the loggers of a Trainer goes nowhere."""
    loggers = trainer.loggers
    trainer.loggers = [silent_logger() for _ in loggers]
    try:
        yield
    finally:
        trainer.loggers = loggers


def _nothing(*args: Any, **options: Any) -> None:
    """In the place of what would be logged."""
