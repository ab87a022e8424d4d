"""Hugging Face's Trainer as the surroundings of a measurement.

A callback of transformers is not told which Trainer calls it, and numbers can only be logged through that one. So the
handler that called it is looked up among the callers: the only undocumented part of the Trainer that is used, and only
here. tests/integrations/test_trainer_private.py says by name what has changed.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from transformers import PrinterCallback, ProgressCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from lightning_exposure.measuring import Moment, Update, is_last, training_clock
from lightning_exposure.measuring.surroundings import gather_objects
from lightning_exposure.secrets.recorded_console import console_is_recorded

Value = TypeVar("Value")

_STATES = "lightning_exposure"
"""Under which name the states of our callbacks are saved with the Trainer's own."""

_SUMMARIES = ("/max", "/mean", "/extracted", "/epsilon_lower")
"""What the console shows: the numbers of every single canary are for the loggers."""


@dataclass(frozen=True)
class TransformersSurroundings:
    """What a measurement asks of whatever trains the model, asked of what a Trainer tells its callbacks.

    Attributes:
        args: Of the training.
        state: Where it is.
        control: What it is about to do.
        others: What else the callback was given: the model, the tokenizer, the data loaders.
        handler: Of all callbacks; None if it was not found, and only `state.log_history` gets the numbers.
        owner: The callback that measures: what it logs is not sent back to it.
    """

    args: TrainingArguments
    state: TrainerState
    control: TrainerControl
    others: Mapping[str, Any]
    handler: CallbackHandler | None
    owner: Any

    @property
    def rank(self) -> int:
        """The number of this process."""
        return int(self.args.process_index)

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return int(self.args.world_size)

    @property
    def is_sharded(self) -> bool:
        """Whether a forward of the model needs all processes."""
        launched = [os.environ.get(f"ACCELERATE_USE_{name}", "false") for name in ("FSDP", "DEEPSPEED")]
        asked = (getattr(self.args, "fsdp", None), getattr(self.args, "deepspeed", None))
        return any(map(bool, asked)) or "true" in launched

    def gather(self, value: Value) -> list[Value]:
        """The value of each process, in every process."""
        return gather_objects(value, self.world_size)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Into `state.log_history`, and to whatever the Trainer reports to; the first process only.

        Not through `handler.on_log`, which would withdraw a log that the Trainer is about to make.
        """
        if not self.state.is_world_process_zero:
            return
        logs = {**metrics, "epoch": self.state.epoch}
        self.state.log_history.append({**logs, "step": self.state.global_step})
        for callback in self._callbacks:
            if callback is not self.owner:
                is_console = isinstance(callback, ProgressCallback | PrinterCallback)
                seen = {name: value for name, value in logs.items() if not is_console or name.endswith(_SUMMARIES)}
                callback.on_log(self.args, self.state, self.control, logs=seen, **self.others)

    def say(self, text: str) -> None:
        """Print once, above the progress bar if there is one."""
        if not self.state.is_world_process_zero:
            return
        with suppress(Exception):  # whatever a bar does, the training goes on
            bar = self._bar
            if bar is not None:
                bar.write(text, file=sys.stderr)
                return
        print(text, file=sys.stderr)

    @contextmanager
    def status(self, title: str) -> Iterator[Update]:
        """Beside the Trainer's own bar."""
        bar = self._bar

        def show(text: str) -> None:
            with suppress(Exception):
                if bar is not None:
                    bar.set_description_str(text)

        show(title)
        try:
            yield lambda text: show(f"{title} {text}")
        finally:
            show("")

    def seconds(self) -> float:
        """Seconds of training in this process."""
        return training_clock()

    @property
    def console_is_recorded(self) -> bool:
        """Whether what is printed may leave this machine."""
        given = self.args.report_to
        return console_is_recorded(reports_to=[given] if isinstance(given, str) else given or [])

    @property
    def _callbacks(self) -> list[Any]:
        return [] if self.handler is None else list(self.handler.callbacks)

    @property
    def _bar(self) -> Any | None:
        bars = (getattr(callback, "training_bar", None) for callback in self._callbacks)
        return next((bar for bar in bars if hasattr(bar, "set_description_str")), None)


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended, as a report takes it: a callback is not told which Trainer calls it.

    Attributes:
        callback: That has something to say.
        model: As it is now.
        train_dataset: What it was trained on, if that is known.
    """

    callback: Any
    model: Any
    train_dataset: Any

    @property
    def callbacks(self) -> list[Any]:
        """The one that asks for the report."""
        return [self.callback]


def saved_states(state: TrainerState) -> dict[str, Any]:
    """The states of all callbacks of ours, by their keys, in the Trainer's own state, which its checkpoints keep."""
    everyones: Any = state.stateful_callbacks  # a dict as soon as the state is made
    found: dict[str, Any] = everyones.setdefault(_STATES, {})
    return found


def calling_handler(frame: FrameType | None) -> CallbackHandler | None:
    """The handler that called a callback, looked for from the callback's own frame on.

    Args:
        frame: Of the callback's method.
    """
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, CallbackHandler):
            return caller
        frame = frame.f_back
    return None


def go_first(handler: CallbackHandler | None, callback: Any) -> None:
    """Let a callback be called before all others, while the handler is going through them.

    What stops early looks at an evaluation, and what reports closes its run, when it is called: the numbers must be
    there before. Those behind the callback keep their places, so that none is called twice or left out.
    """
    if handler is not None and callback in handler.callbacks:
        handler.callbacks.remove(callback)
        handler.callbacks.insert(0, callback)


def moment(state: TrainerState, control: TrainerControl, *, epoch_ended: bool) -> Moment:
    """Where a training run is, inside of an epoch or where it ends."""
    epochs = epochs_of(state)
    last = is_last(
        epochs=epochs,
        max_epochs=state.num_train_epochs,
        steps=state.global_step,
        max_steps=state.max_steps,
        epoch_ended=epoch_ended,
        stopping=control.should_training_stop,
    )
    return Moment(epochs, state.global_step, last)


def final_moment(args: TrainingArguments, state: TrainerState) -> Moment:
    """When a training has ended; with `load_best_model_at_end` the model has the weights of an earlier step by then."""
    step = state.global_step
    if args.load_best_model_at_end and state.best_model_checkpoint is not None and state.best_global_step:
        step = state.best_global_step
    share = step / state.global_step if state.global_step else 1.0
    return Moment(math.ceil(round((state.epoch or 0) * share, 6)), step, last=True)


def epochs_of(state: TrainerState) -> int:
    """How many epochs are finished, the one under way included."""
    return math.ceil(round(state.epoch or 0, 6))


def at_end_of_epoch(state: TrainerState) -> bool:
    """Whether the step just taken is the last one of an epoch."""
    return bool(state.epoch) and float(state.epoch).is_integer()
