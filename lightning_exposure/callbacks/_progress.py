"""Shows in the trainer's own progress bar that a measurement or an attack is running, and how far it is.

Bars are of many kinds, users write their own, and what a bar has at a moment differs from one Lightning to the next. So
nothing here is taken for granted: a line that cannot be shown is not shown, and never ends a training run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch import Trainer
from tqdm import tqdm

Update = Callable[[str], None]

_TASKS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The one line of ours in each Rich display."""


@contextmanager
def status(trainer: Trainer, title: str) -> Iterator[Update]:
    """A line in the active progress bar (Rich or TQDM) while something runs.

    Args:
        trainer: Whose bar to use; without one nothing is shown.
        title: What is running.

    Yields:
        A function that changes what the line says about how far it is.
    """
    line = _Line(trainer)
    line.show(title)
    try:
        yield lambda text: line.show(f"{title} {text}")
    finally:
        line.hide()


def say(trainer: Trainer, text: str) -> None:
    """Print for people, once, above the progress bar if there is one."""
    if not trainer.is_global_zero:
        return
    with suppress(Exception):
        bar = _enabled_bar(trainer)
        # TQDM's bar prints nothing at all while it has no line on the screen: before training, and behind it.
        if bar is not None and (getattr(bar, "progress", None) is not None or _tqdm_line(bar) is not None):
            bar.print(text)
            return
    print(text, file=sys.stderr)


class _Line:
    """A line of a progress bar, for a while; after the first trouble with it, nothing."""

    def __init__(self, trainer: Trainer) -> None:
        self._set: Callable[[str], object] | None = None
        self._restore: Callable[[], object] = _nothing
        with suppress(Exception):
            bar = _enabled_bar(trainer)
            if bar is None:
                return
            if getattr(bar, "progress", None) is not None:
                self._use_rich(bar.progress)
            elif (line := _tqdm_line(bar)) is not None:
                self._use_tqdm(line)
            elif any(base.__name__ == "TQDMProgressBar" for base in type(bar).__mro__):
                self._use_own()

    def show(self, text: str) -> None:
        """Say something."""
        if self._set is None:
            return
        try:
            self._set(text)
        except Exception:  # whatever a bar does, training goes on
            self._set = None

    def hide(self) -> None:
        """Leave the bar as it was."""
        with suppress(Exception):
            self._restore()

    def _use_rich(self, progress: Any) -> None:
        # A line that is hidden and shown again, and never removed: Lightning takes the number of a line for its place.
        task = _TASKS.get(progress)
        if task is None:
            task = _TASKS[progress] = progress.add_task("", total=math.inf, visible=False)
        self._set = lambda text: progress.update(task, description=text, visible=True)
        self._restore = lambda: progress.update(task, visible=False)

    def _use_tqdm(self, line: Any) -> None:
        before = (getattr(line, "desc", None) or "").removesuffix(": ")
        self._set = line.set_description
        self._restore = lambda: line.set_description(before)

    def _use_own(self) -> None:
        """TQDM's bar has no line before training and none behind it, when the longest attacks run."""
        line = tqdm(file=sys.stdout, bar_format="{desc}", leave=False, dynamic_ncols=True)
        self._set = lambda text: line.set_description_str(text)
        self._restore = line.close


def _nothing() -> None:
    """There is nothing to restore."""


def _enabled_bar(trainer: Trainer) -> Any | None:
    """The trainer's bar, if it has one that shows something; a bar of the user's may not say whether it does."""
    bar: Any = trainer.progress_bar_callback
    return bar if bar is not None and getattr(bar, "is_enabled", True) else None


def _tqdm_line(bar: Any) -> Any | None:
    """The line of a TQDM bar that is on the screen now."""
    for name in ("train_progress_bar", "val_progress_bar"):
        try:
            line = getattr(bar, name)
        except Exception:  # it raises until the line has been made, and Rich's bar does, too
            continue
        # A line that is switched off has no text: so is the one that stands in for another while Lightning tries out
        # the validation, and every one that was closed.
        if hasattr(line, "set_description") and not getattr(line, "disable", False):
            return line
    return None
