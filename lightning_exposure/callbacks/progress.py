"""Shows in the trainer's own progress bar that a measurement or an attack is running, and how far it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Trainer

Update = Callable[[str], None]


@contextmanager
def status(trainer: Trainer, title: str) -> Iterator[Update]:
    """A line in the active progress bar (Rich or TQDM) while something runs.

    Args:
        trainer: Whose bar to use; without one nothing is shown.
        title: What is running.

    Yields:
        A function that changes what the line says about how far it is.
    """
    bar: Any = trainer.progress_bar_callback
    if bar is None or not bar.is_enabled:
        yield lambda text: None
        return
    if getattr(bar, "progress", None) is not None:
        task = bar.progress.add_task(title, total=math.inf)
        try:
            yield lambda text: bar.progress.update(task, description=f"{title} {text}")
        finally:
            bar.progress.remove_task(task)
        return
    line = _tqdm_line(bar)
    if line is None:
        yield lambda text: None
        return
    before = line.desc
    line.set_description(title)
    try:
        yield lambda text: line.set_description(f"{title} {text}")
    finally:
        line.set_description(before.removesuffix(": "))


def _tqdm_line(bar: Any) -> Any | None:
    """The line of a TQDM bar that is on the screen now."""
    for name in ("train_progress_bar", "val_progress_bar"):
        try:
            return getattr(bar, name)
        except (AttributeError, TypeError, AssertionError):  # it raises until the bar has been made, Rich's too
            continue
    return None
