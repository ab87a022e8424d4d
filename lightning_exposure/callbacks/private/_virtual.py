"""`VirtualBatches`: a Poisson batch that memory does not hold, trained on in parts, as one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_exposure._lightning import StepMetrics, received, set_outputs_loss, train_on
from lightning_exposure.callbacks.private._attributes import Attributes
from lightning_exposure.callbacks.private.watching.seams import put
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.parts import Rest
from lightning_exposure.privacy.steps.private_steps import PrivateSteps
from lightning_exposure.privacy.steps.proof.reruns.undoing import unnoticed


class VirtualBatches:
    """Runs the parts of a batch that follow its first, inside of the same optimizer step.

    Lightning sees the first part of every batch, and makes one step of it. After its backward pass come those of the
    others: `training_step` and `backward` with the same hooks. Their clipped sums are added up; noise is drawn once.

    In which part an example is, and how many parts there are, tells which other records were drawn. So every part
    begins with the plain attributes and buffers that the first has begun with, and afterwards they are what the first
    has made of them: what training steps count in the module, they count once a step.

    With several processes all run equally many parts, because they may wait for each other in them. Those that have
    fewer run their first part again, which counts as nothing and leaves no trace.

    Args:
        trainer: Who trains.
        module: What is trained.
        steps: Its private steps.
        look: Called with every part after the first, and the number of its examples, before it is trained on.

    Attributes:
        close: Leaves the module as it was.
    """

    def __init__(
        self, trainer: Trainer, module: LightningModule, steps: PrivateSteps, look: Callable[[Any, int], None]
    ) -> None:
        self._trainer, self._module, self._steps, self._look = trainer, module, steps, look
        self._batch: Any = None
        self._index = self._passes = 0
        self._rest: Rest | None = None
        original = module.optimizer_step

        @wraps(original)
        def optimizer_step(*args: Any, **options: Any) -> Any:
            epoch, index, optimizer, closure, *others = args
            return original(epoch, index, optimizer, lambda: self._run(closure), *others, **options)

        self.close = put(module, "optimizer_step", optimizer_step)

    def begin(self, batch: Any, index: int, rest: Rest) -> None:
        """Before a batch is trained on.

        Args:
            batch: Its first part, as the training step will see it.
            index: Its number.
            rest: The others.
        """
        self._batch, self._index, self._rest = batch, index, rest
        self._passes = self._agreed(len(rest.sizes))

    def _agreed(self, parts: int) -> int:
        """How many parts the process with the most has."""
        if self._trainer.world_size == 1:
            return parts
        most = torch.tensor(parts, device=self._trainer.strategy.root_device)
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
        return int(most)

    def _run(self, closure: Callable[[], Any]) -> Any:
        """In the place of the closure in which Lightning trains on a batch."""
        if self._rest is None:
            raise FitError(
                "The closure of a step was called twice, by an optimizer_step of the module's own or by the optimizer; "
                "with max_physical_batch_size it trains on all parts of a batch, and can be called once."
            )
        rest, self._rest = self._rest, None
        if self._passes == 1:
            return closure()
        metrics, before = StepMetrics(self._trainer), Attributes(self._module)
        with metrics.counted(rest.sizes[0]):
            losses = [(closure(), rest.sizes[0])]
        after = Attributes(self._module)
        for part, examples in rest:
            before.restore()
            self._steps.end_part()
            batch = received(self._trainer, part)
            self._look(batch, examples)
            self._steps.begin_part(examples)
            with metrics.another_pass(batch), metrics.counted(examples):
                losses.append((train_on(self._trainer, batch, self._index), examples))
        after.restore()
        for _ in range(self._passes - len(rest.sizes)):
            self._stand_in(metrics)
        summed = self._steps.clipping.loss_reduction == "sum"
        metrics.finish([loss for loss, _ in losses] if summed else None)
        loss = self._loss(losses)
        set_outputs_loss(closure, loss)
        return loss

    def _stand_in(self, metrics: StepMetrics) -> None:
        """Go through a part with the processes that have one."""
        self._steps.end_part()
        self._steps.begin_part(0)
        with unnoticed(self._module), metrics.unheard(), metrics.another_pass(self._batch):
            train_on(self._trainer, self._batch, self._index)

    def _loss(self, losses: list[tuple[Any, int]]) -> Any:
        """The loss of the whole batch."""
        found = [(loss, examples) for loss, examples in losses if isinstance(loss, Tensor)]
        total = sum(examples for _, examples in found)
        if not total:
            return losses[0][0]
        if self._steps.clipping.loss_reduction == "sum":
            return sum(loss for loss, _ in found)
        return sum(loss * (examples / total) for loss, examples in found)
