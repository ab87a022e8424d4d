"""A batch once more, with other data, by a copy of the module: to see what the data have a say in."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from lightning_exposure.callbacks.private._refusals import is_overridden
from lightning_exposure.callbacks.private._seams import unwrap
from lightning_exposure.measuring import quiet
from lightning_exposure.privacy.steps.saved_state import HOOK, Outcome, contents, perturb, saved_values


class Repeats:
    """Remembers the last two batches, and can repeat one.

    Nothing of it is left behind: the copy has weights of its own, logs nowhere, and random numbers go on as if it had
    not been.

    Args:
        trainer: Who trains.
        module: What is trained.
    """

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer, self._module = trainer, module
        self._batches: list[Any] = []
        self._index = 0
        self.saves = is_overridden("on_save_checkpoint", module, "LightningModule")

    @property
    def possible(self) -> bool:
        """Whether there was a batch."""
        return bool(self._batches)

    @property
    def last(self) -> Any:
        """The last batch."""
        return self._batches[0]

    def show(self, batch: Any, index: int) -> None:
        """Remember a batch."""
        self._batches, self._index = [batch, *self._batches[:1]], index

    def __call__(self, names: Sequence[str] = ()) -> tuple[Outcome, list[Outcome]]:
        """Repeat the last batch, the one before it, and a part of the last one.

        Args:
            names: What begins with another value than it has; then the end of an epoch is repeated, too.

        Returns:
            What is saved before, and afterwards for each of the data with which the module got to the end.
        """
        before: Outcome = {}
        outcomes: list[Outcome] = []
        for batch in (*self._batches, part_of(self._batches[0])):
            twin = self.twin()
            if twin is None:
                break
            perturb(twin, names)
            before = {**contents(saved_values(twin)), **self._saved_by_hook(twin, still=True)}
            with quiet(self._module):
                if self.run(twin, batch, epoch_end=bool(names)):
                    outcomes.append({**contents(saved_values(twin)), **self._saved_by_hook(twin)})
        return before, outcomes

    def twin(self) -> Any:
        """A copy of the module that logs nowhere; None if there can be none."""
        try:
            twin = copy.deepcopy(self._module)
        except Exception:
            return None  # what cannot be copied cannot be tried
        trainer = _Silent(self._trainer)
        unwrap(twin)
        for part in twin.modules():
            if "_trainer" in vars(part):
                vars(part)["_trainer"] = trainer
                vars(part).update(log=_nothing, log_dict=_nothing, print=_nothing)
        return twin

    def run(self, twin: Any, batch: Any, *, epoch_end: bool = False) -> bool:
        """Let a copy go through a batch, with the hooks around it. Returns whether it got to the end."""
        try:
            if epoch_end:
                twin.on_train_epoch_start()
            twin.on_train_batch_start(batch, self._index)
            outputs = self._step(twin, batch)
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if isinstance(loss, Tensor):
                self._around_the_step(twin, loss)
            outputs = {"loss": outputs} if isinstance(outputs, Tensor) else outputs
            twin.on_train_batch_end(outputs, batch, self._index)
            if epoch_end:
                twin.on_train_epoch_end()
        except Exception:
            return False  # it need not be made for such a batch
        return True

    def loss(self, twin: Any, batch: Any) -> float | None:
        """What the training step of a copy makes of a batch; None if that is no loss."""
        try:
            twin.on_train_batch_start(batch, self._index)
            outputs = self._step(twin, batch)
        except Exception:
            return None
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        return float(loss) if isinstance(loss, Tensor) else None

    def _step(self, twin: Any, batch: Any) -> Any:
        with self._trainer.precision_plugin.train_step_context():
            return twin.training_step(*_fitting(twin.training_step, batch, self._index))

    def _around_the_step(self, twin: Any, loss: Tensor) -> None:
        """The hooks between training step and weights; each by itself, because there are no gradients for them."""
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.0)
        with torch.enable_grad():
            leaf = loss.detach().clone().requires_grad_()
            calls: list[tuple[str, Any]] = [("on_before_zero_grad", optimizer), ("on_before_backward", leaf)]
            if is_overridden("backward", twin, "LightningModule"):
                calls.append(("backward", leaf * 1.0))
            calls += [("on_after_backward", None), ("on_before_optimizer_step", optimizer)]
            for name, argument in calls:
                with contextlib.suppress(Exception):
                    getattr(twin, name)(*(() if argument is None else (argument,)))

    def _saved_by_hook(self, twin: Any, *, still: bool = False) -> dict[str, int]:
        """What the module itself puts into a checkpoint.

        Args:
            twin: A copy of the module.
            still: Leave out what follows the weights, or the number of steps or epochs.
        """
        values = self._hook_values(twin) if self.saves else {}
        if not still or not values:
            return contents(values)
        clock = (self._trainer.global_step, self._trainer.current_epoch, self._trainer.current_epoch + 1)
        other = self.twin()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(1)
        moved = contents(self._hook_values(other))
        same = {name: value for name, value in contents(values).items() if moved.get(name) == value}
        return {
            name: value for name, value in same.items() if type(values[name]) is not int or values[name] not in clock
        }

    def _hook_values(self, twin: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"state_dict": {}, "epoch": 0, "global_step": 0}
        checkpoint = dict(given)
        try:
            type(twin).on_save_checkpoint(twin, checkpoint)
        except Exception:
            return {}
        return {f"{HOOK}{key}": value for key, value in checkpoint.items() if key not in given}


def part_of(batch: Any) -> Any:
    """The first half of a batch; if it has one example, twice the same. What it does not understand, it leaves.

    Example:
        >>> part_of({"x": torch.arange(4), "names": ["a", "b", "c", "d"]})
        {'x': tensor([0, 1]), 'names': ['a', 'b']}
    """
    sizes = [len(value) for value in _leaves(batch)]
    return _resized(batch, sizes[0]) if sizes else batch


def _leaves(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        if batch.dim():
            yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _leaves(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from _leaves(value)


def _resized(value: Any, size: int) -> Any:
    if isinstance(value, Tensor):
        if not value.dim() or len(value) != size:
            return value
        return value[: size // 2] if size > 1 else torch.cat([value, value])
    if isinstance(value, Mapping):
        made = copy.copy(value)
        for key in value:
            made[key] = _resized(value[key], size)  # type: ignore[index]
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_resized(item, size) for item in value))
    if isinstance(value, list | tuple):
        if len(value) == size and not any(True for _ in _leaves(value)):
            return value[: size // 2] if size > 1 else type(value)([*value, *value])
        return type(value)(_resized(item, size) for item in value)
    return value


def _fitting(step: Any, batch: Any, index: int) -> tuple[Any, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [value for value in inspect.signature(step).parameters.values() if value.kind in kinds]
    return (batch, index) if len(taken) > 1 else (batch,)


def _nothing(*args: Any, **options: Any) -> None:
    """In the place of what would be logged."""


class _Silent:
    """A Trainer that can be asked, but has no loggers."""

    def __init__(self, trainer: Any) -> None:
        vars(self)["_asked"] = trainer

    def __getattr__(self, name: str) -> Any:
        if name == "logger":
            return DummyLogger()
        return [] if name == "loggers" else getattr(vars(self)["_asked"], name)
