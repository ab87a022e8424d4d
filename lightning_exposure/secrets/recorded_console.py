"""Does what is printed leave this machine? Some loggers record the console and send it along."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_LEAVE_THE_CONSOLE_ALONE = {"CSVLogger", "TensorBoardLogger", "MLFlowLogger", "DummyLogger"}
"""Loggers of Lightning that keep what they are given and nothing else; of all others that is not known."""

_REPORT_NUMBERS = {"tensorboard", "mlflow", "none"}
"""The same, as Hugging Face's Trainer calls them."""


def console_is_recorded(loggers: Iterable[Any] = (), reports_to: Iterable[str] = ()) -> bool:
    """Whether anyone may be recording what is printed: W&B, Comet and ClearML do.

    Args:
        loggers: Of a Trainer of Lightning.
        reports_to: What a Trainer of transformers reports to.

    Example:
        >>> console_is_recorded(reports_to=["tensorboard"]), console_is_recorded(reports_to=["wandb"])
        (False, True)
    """
    known = (any(base.__name__ in _LEAVE_THE_CONSOLE_ALONE for base in type(logger).__mro__) for logger in loggers)
    return not all(known) or not _REPORT_NUMBERS.issuperset(reports_to) or _tracker_is_running()


def _tracker_is_running() -> bool:
    """Whether a run was begun by hand; nothing is imported for the question."""
    for package, running in _RUNNING.items():
        module = sys.modules.get(package)
        with suppress(Exception):  # half imported, or of another version
            if module is not None and running(module) is not None:
                return True
    return False


_RUNNING: dict[str, Any] = {
    "wandb": lambda wandb: wandb.run,
    "clearml": lambda clearml: clearml.Task.current_task(),
    "comet_ml": lambda comet_ml: comet_ml.get_running_experiment(),
}
