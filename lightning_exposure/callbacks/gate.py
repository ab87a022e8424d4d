"""`ExposureGate`: ends a training run whose model is too exposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure.callbacks._surroundings import (
    TrainerSurroundings,
    callbacks_of,
    show_at_the_end,
    show_to_monitors,
)
from lightning_exposure.callbacks.exposure import ExposureCallback
from lightning_exposure.callbacks.private.differential_privacy import DifferentialPrivacy
from lightning_exposure.errors import ArgumentError
from lightning_exposure.measuring.gate import Answer, GateAction, GateKeeper, UndecidedAction
from lightning_exposure.report.record import RunRecord


class ExposureGate(Callback):
    """Ends a training run, or warns, when a canary is more exposed, or more privacy is spent, than is allowed.

    It looks at every measurement of the `ExposureCallback`s of the Trainer, wherever it stands among the callbacks, and
    has three answers. *Exceeded*: the lower end of an interval is above `max_bits`. *Within*: the upper ends of all are
    at most `max_bits`. *Undecided*: the limit lies inside of an interval; then it measures those canaries further, with
    up to `max_effort` times the samples and the budget, and what stays open is treated as `undecided` says.

    A wrong alarm has a probability of at most `1 - confidence` over the whole run: all looks and all canaries together.
    What is only estimated is therefore confirmed by a second, independent measurement before the gate closes
    (`lightning_exposure.measuring.gate` has the proof). Exposures that were counted are certain and need none of that.

    Canaries that were never inserted (controls, and what an audit holds out) close no gate: they cannot have been
    memorized. One of them above the limit causes a `GateWarning`, and is named in the record.

    Logged, so that `EarlyStopping` and `ModelCheckpoint` can monitor them: `gate/low` and `gate/high`, the largest
    lower and upper end after measuring further; `gate/exceeded` and `gate/undecided`, 0 or 1; `gate/alpha_spent`. The
    training run is not affected as long as the gate is open: weights are bit for bit what they are without it.

    Args:
        max_bits: The largest exposure that is allowed, in bits; None: any. A `GateWarning` says if it is below what
            luck gives so many canaries, `log2(canaries / (1 - confidence))`.
        max_epsilon: The largest epsilon that `DifferentialPrivacy` may have spent; None: any.
        action: "stop": end the training run after this step or epoch, as `EarlyStopping` does; "raise": the same, and
            raise a `GateError` when all callbacks have finished and checkpoints are written; "warn": go on.
        undecided: What to do with that answer: "warn", "stop", "raise" or "ignore".
        confidence: With which an alarm is right, over the whole run.
        max_effort: How many times the samples and the budget of the `ExposureCallback` a further measurement may have;
            1: it does not measure further.
        seed: The random seed of further walks.
        name: The first part of the metrics' names. Two gates in one Trainer need different ones.

    Attributes:
        answer: The newest: "within", "exceeded" or "undecided"; None before the first look.
        reason: For it, in a sentence.
        stopped_at_step: After how many steps a limit was found to be exceeded; None: it was not.

    Raises:
        ArgumentError: An argument is out of range; it is named.

    Example:
        >>> gate = ExposureGate(max_bits=10)  # Trainer(callbacks=[ExposureCallback(canaries), gate])
        >>> gate.answer, gate.reason
        (None, 'nothing was measured yet')
    """

    def __init__(
        self,
        max_bits: float | None = None,
        max_epsilon: float | None = None,
        action: GateAction = "stop",
        *,
        undecided: UndecidedAction = "warn",
        confidence: float = 0.95,
        max_effort: int = 16,
        seed: int = 0,
        name: str = "gate",
    ) -> None:
        self._keeper = GateKeeper(
            max_bits=max_bits,
            max_epsilon=max_epsilon,
            action=action,
            undecided=undecided,
            confidence=confidence,
            max_effort=max_effort,
            seed=seed,
            name=name,
        )
        self.max_bits = max_bits
        self.max_epsilon = max_epsilon
        self.action = action
        self.undecided = undecided
        self.confidence = confidence
        self.max_effort = max_effort
        self.seed = seed
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
        """After how many steps a limit was found to be exceeded; None: it was not."""
        return self._keeper.stopped_at_step

    @property
    def state_key(self) -> str:
        """Different for gates with different names: a limit may be another one when a run is resumed."""
        return f"ExposureGate[{self.name}]"

    def add_to_record(self, record: RunRecord) -> None:
        """Note in a record what the gate decided, and when."""
        self._keeper.add_to_record(record)

    # ---- hooks --------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what cannot work before any training is paid for, and stand behind what is looked at.

        Raises:
            ArgumentError: There is nothing that measures what is limited.
        """
        if stage != "fit":
            return
        if self.max_bits is not None and not _exposures(trainer):
            raise ArgumentError(
                f"max_bits is {self.max_bits:g}, and no ExposureCallback is among the callbacks of the Trainer; "
                "expected one, because the gate looks at what it measures. Add ExposureCallback(canaries)."
            )
        if self.max_epsilon is not None and _privacy(trainer) is None:
            raise ArgumentError(
                f"max_epsilon is {self.max_epsilon:g}, and no DifferentialPrivacy is among the callbacks of the "
                "Trainer; expected one, because without it no epsilon is kept. Add DifferentialPrivacy(...), or leave "
                "max_epsilon out."
            )
        self._stand_behind(trainer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a new run, unless a checkpoint has just brought one; the trees are built by now."""
        self._keeper.begin([callback.monitor for callback in _exposures(trainer)], TrainerSurroundings(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at what was measured after a step."""
        metrics = self._look(trainer, pl_module)
        if metrics is not None:
            pl_module.log_dict(dict(metrics), on_step=True, on_epoch=False, logger=False)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at what was measured at the end of an epoch; callbacks that monitor must find something every time."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self._look(trainer, pl_module, epoch_ended=bool(trainer.is_last_batch))
        show_to_monitors(pl_module, self._keeper.newest_metrics())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same without a validation."""
        if self._look(trainer, pl_module, epoch_ended=True) is not None:
            show_to_monitors(pl_module, self._keeper.newest_metrics())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last look: nothing is left to be stopped, but the answer is about the weights that are kept."""
        metrics = self._look(trainer, pl_module, epoch_ended=True)
        if metrics is not None:
            show_at_the_end(trainer, metrics)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise where that was asked for, now that everything is written.

        Raises:
            GateError: A limit is exceeded, or that is undecided, and it was to be raised.
        """
        if self._keeper.wants == "raise":
            raise self._keeper.error()

    def state_dict(self) -> dict[str, Any]:
        """What was decided and spent; no text of a secret."""
        return self._keeper.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a run was."""
        self._keeper.load_state_dict(state_dict)

    # ---- inside -------------------------------------------------------------------------------------------

    def _look(
        self, trainer: Trainer, module: LightningModule, *, epoch_ended: bool = False
    ) -> Mapping[str, float] | None:
        around, metrics = TrainerSurroundings(trainer), None
        for callback in _exposures(trainer):
            metrics = self._keeper.look(callback.monitor, module, around) or metrics
        privacy = _privacy(trainer)
        if epoch_ended and privacy is not None and self.max_epsilon is not None:
            step = trainer.global_step
            metrics = self._keeper.look_at_epsilon(privacy.epsilon, step, around) or metrics
        if metrics is None:
            return None
        self._keeper.warn_if_asked(around)
        if self._keeper.wants in ("stop", "raise") and not trainer.should_stop:
            trainer.should_stop = True
            around.say(f"{self.name}: training ends here ({self.answer}): {self.reason}.")
        return metrics

    def _stand_behind(self, trainer: Trainer) -> None:
        """Measurements come first in every hook: at a later one the weights may be others already."""
        callbacks = callbacks_of(trainer)
        needed = [*_exposures(trainer), *([] if self.max_epsilon is None else [_privacy(trainer)])]
        last = max((callbacks.index(callback) for callback in needed), default=-1)
        place = callbacks.index(self)
        if place < last:
            # A new list: the Trainer is going through the old one.
            trainer.callbacks = [*callbacks[:place], *callbacks[place + 1 : last + 1], self, *callbacks[last + 1 :]]  # type: ignore[attr-defined]


def _exposures(trainer: Trainer) -> list[ExposureCallback]:
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, ExposureCallback)]


def _privacy(trainer: Trainer) -> DifferentialPrivacy | None:
    return next((it for it in callbacks_of(trainer) if isinstance(it, DifferentialPrivacy)), None)
