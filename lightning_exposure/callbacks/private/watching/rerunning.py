"""A training step run once more, with nothing logged."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lightning_exposure._lightning import silent_logger, takes_batch_index
from lightning_exposure.callbacks.private._refusals import is_overridden

_LOGS = ("log", "log_dict", "print")
"""The methods of a module by which it says something."""
_TRANSFERS = ("on_before_batch_transfer", "on_after_batch_transfer")


def hooks_before_step(module: Any, batch: Any, batch_idx: int) -> None:
    """Call the hooks of a module's own that see a batch before its training step does: they may keep something of it.

    Those that the user vouches for are left out; they may move weights.

    Args:
        module: What is trained.
        batch: Any batch, as the training step will get it.
        batch_idx: Its number.
    """
    # Copies: hooks may write into what they get, and whoever changes the batch that is trained on is refused for it.
    for name in _TRANSFERS:
        if _is_own(module, name):
            with contextlib.suppress(Exception):  # they are meant for what the batch was before them
                getattr(module, name)(copy.deepcopy(batch), 0)
    if _is_own(module, "on_train_batch_start"):
        module.on_train_batch_start(copy.deepcopy(batch), batch_idx)


def _is_own(module: Any, name: str) -> bool:
    return name not in vars(module) and is_overridden(name, module, "LightningModule")


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
