"""`ExposureGateTrainerCallback`: the gate in Hugging Face's Trainer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lightning_exposure._checks import refusal
from lightning_exposure.errors import ArgumentError
from lightning_exposure.integrations._trainer import TransformersSurroundings, calling_handler
from lightning_exposure.integrations.transformers import ExposureTrainerCallback
from lightning_exposure.measuring import ExposureMonitor
from lightning_exposure.measuring.gate import Answer, GateAction, GateKeeper, UndecidedAction
from lightning_exposure.report.record import RunRecord

_STATES = "lightning_exposure_gates"
"""Under which name the states of gates are saved with the Trainer's own."""


class ExposureGateTrainerCallback(TrainerCallback):
    """What `ExposureGate` does, in a `transformers.Trainer` with an `ExposureTrainerCallback`; any order will do.

    Args:
        max_bits: The largest exposure that is allowed, in bits.
        action: "stop": end the training after this step, and save a checkpoint; "raise": the same, and raise a
            `GateError` at the end of `train()`; "warn": go on.
        undecided: What to do where that stays open: "warn", "stop", "raise" or "ignore".
        confidence: With which an alarm is right, over the whole run.
        max_effort: How many times the samples and the budget of the measurement a further one may have.
        seed: The random seed of further walks.
        name: The first part of the metrics' names.

    Raises:
        ArgumentError: An argument is out of range; it is named.

    Example:
        >>> gate = ExposureGateTrainerCallback(max_bits=10)  # Trainer(callbacks=[ExposureTrainerCallback(...), gate])
        >>> gate.answer, gate.reason
        (None, 'nothing was measured yet')
    """

    def __init__(
        self,
        max_bits: float,
        action: GateAction = "stop",
        *,
        undecided: UndecidedAction = "warn",
        confidence: float = 0.95,
        max_effort: int = 16,
        seed: int = 0,
        name: str = "gate",
    ) -> None:
        if max_bits is None:
            raise refusal("max_bits", max_bits, "a number of bits", "DifferentialPrivacy is for Lightning only.")
        self._keeper = GateKeeper(
            max_bits=max_bits, action=action, undecided=undecided, confidence=confidence, max_effort=max_effort,
            seed=seed, name=name,
        )  # fmt: skip
        self.name = name

    @property
    def answer(self) -> Answer | None:
        """The newest: "within", "exceeded" or "undecided"; None before the first look."""
        return self._keeper.answer

    @property
    def reason(self) -> str:
        """For the newest answer, in a sentence."""
        return self._keeper.reason

    @property
    def stopped_at_step(self) -> int | None:
        """After how many steps the limit was found to be exceeded; None: it was not."""
        return self._keeper.stopped_at_step

    def add_to_record(self, record: RunRecord) -> None:
        """Note in a record what the gate decided, and when."""
        self._keeper.add_to_record(record)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse what cannot work, and go on with what a checkpoint brought.

        Raises:
            ArgumentError: There is nothing that measures, or the limit cannot be exceeded.
        """
        around = self._around(args, state, control, kwargs)
        watched = self._watched(around)
        if not watched:
            raise ArgumentError(
                f"max_bits is {self._keeper.max_bits:g}, and no ExposureTrainerCallback is among the callbacks of the "
                "Trainer; expected one, because the gate looks at what it measures. Add ExposureTrainerCallback(...)."
            )
        saved = _saved(state).get(self.name)
        if saved is not None:
            self._keeper.load_state_dict(saved)
        self._keeper.begin(watched, around)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Look at what was measured after a step."""
        self._look(args, state, control, kwargs)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Look at what was measured at the end of an epoch."""
        self._look(args, state, control, kwargs)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last look; and raise where that was asked for.

        Raises:
            GateError: The limit is exceeded, or that is undecided, and it was to be raised.
        """
        self._look(args, state, control, kwargs)
        if self._keeper.wants == "raise":
            raise self._keeper.error()

    def _look(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, others: Mapping[str, Any]
    ) -> None:
        around = self._around(args, state, control, others)
        looked = [self._keeper.look(monitor, others["model"], around) for monitor in self._watched(around)]
        if all(metrics is None for metrics in looked):
            return
        _saved(state)[self.name] = self._keeper.state_dict()
        self._keeper.warn_if_asked(around)
        if self._keeper.wants in ("stop", "raise") and not control.should_training_stop:
            control.should_training_stop = control.should_save = True
            around.say(f"{self.name}: training ends here ({self.answer}): {self.reason}.")

    def _around(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, others: Mapping[str, Any]
    ) -> TransformersSurroundings:
        return TransformersSurroundings(args, state, control, others, calling_handler(sys._getframe()), self)

    def _watched(self, around: TransformersSurroundings) -> list[ExposureMonitor]:
        callbacks = [] if around.handler is None else around.handler.callbacks
        return [it._run.monitor for it in callbacks if isinstance(it, ExposureTrainerCallback)]


def _saved(state: TrainerState) -> dict[str, Any]:
    """The states of all gates, by their names."""
    everyones: Any = state.stateful_callbacks
    found: dict[str, Any] = everyones.setdefault(_STATES, {})
    return found
