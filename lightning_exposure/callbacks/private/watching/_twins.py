"""A copy of the module goes through a batch once more, with other data: to see what the data have a say in."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_exposure._lightning import set_trainer, silent_logger
from lightning_exposure.callbacks.private._refusals import is_overridden
from lightning_exposure.callbacks.private.manual.rehearsing import Rehearsal
from lightning_exposure.callbacks.private.watching._batches import part_of
from lightning_exposure.callbacks.private.watching.rerunning import loss_of, run_step, silence
from lightning_exposure.callbacks.private.watching.seams import unwrap
from lightning_exposure.measuring import quiet
from lightning_exposure.privacy.steps.proof.reruns.randomness import RowRandomness
from lightning_exposure.privacy.steps.proof.reruns.rows import tensors_of
from lightning_exposure.privacy.steps.saved_state import HOOK, Outcome, contents, perturb, saved_values


class Twins:
    """Copies of a module, made one at a time, and the last two batches for them to go through again.

    Nothing of it is left behind: a copy has weights of its own, logs nowhere, and random numbers go on as if it had
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
            twin = self.make()
            if twin is None:
                break
            perturb(twin, names)
            before = {**contents(saved_values(twin)), **self._saved_by_hook(twin, still=True)}
            with quiet(self._module):
                if self.run(twin, batch, epoch_end=bool(names)):
                    outcomes.append({**contents(saved_values(twin)), **self._saved_by_hook(twin)})
        return before, outcomes

    def make(self) -> Any:
        """A copy of the module that logs nowhere; None if there can be none."""
        try:
            twin = copy.deepcopy(self._module)
        except Exception:
            return None  # what cannot be copied cannot be tried
        unwrap(twin)
        for part in set_trainer(twin, _Silent(self._trainer)):
            silence(part)
        return twin

    def run(self, twin: Any, batch: Any, *, epoch_end: bool = False) -> bool:
        """Let a copy go through a batch, with the hooks around it. Returns whether it got to the end."""
        try:
            if epoch_end:
                twin.on_train_epoch_start()
            twin.on_train_batch_start(batch, self._index)
            outputs, loss = self._step(twin, batch)
            if loss is not None and self._module.automatic_optimization:
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
            _, loss = self._step(twin, batch)
        except Exception:
            return None
        return None if loss is None else float(loss)

    def _step(self, twin: Any, batch: Any) -> tuple[Any, Tensor | None]:
        """What the training step of a copy returns, and its loss; the sum of all, if it makes its steps itself."""
        if self._module.automatic_optimization:
            outputs = run_step(self._trainer, twin, batch, self._index)
            return outputs, loss_of(outputs)
        rehearsal = Rehearsal(self._trainer, twin, copy_of=self._module)
        # A generator's random numbers are its own, however many were drawn before them for the records of a batch.
        rows = max((len(part) for part in _tensors([batch, *self._batches])), default=1)
        with RowRandomness(rows):
            outputs = rehearsal.run(batch, self._index)
        return outputs, torch.tensor(sum(rehearsal.losses))

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
        other = self.make()
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


def _tensors(batches: Sequence[Any]) -> Iterator[Tensor]:
    parts = (part for batch in batches for part in tensors_of(batch))
    return (part for part in parts if isinstance(part, Tensor) and part.ndim)


class _Silent:
    """A Trainer that can be asked, but has no loggers."""

    def __init__(self, trainer: Any) -> None:
        vars(self)["_asked"] = trainer

    def __getattr__(self, name: str) -> Any:
        if name == "logger":
            return silent_logger()
        return [] if name == "loggers" else getattr(vars(self)["_asked"], name)
