"""`ManualSteps`: the private step of a module that makes its steps itself, and those beside it."""

from __future__ import annotations

import contextlib
from functools import wraps
from typing import Any

from lightning_exposure.callbacks.private.manual._others import Others
from lightning_exposure.callbacks.private.manual.rehearsing import Enough, Rehearsal
from lightning_exposure.callbacks.private.watching.guarding import Guard
from lightning_exposure.callbacks.private.watching.rerunning import silenced, without_loggers
from lightning_exposure.callbacks.private.watching.seams import put
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.private_steps import PrivateSteps
from lightning_exposure.privacy.steps.watching import STOPPED


class ManualSteps:
    """Sees to it that a training step makes one private step, and that its other steps do not see the data.

    What the private optimizer steps along is what its part was shown since its gradients were last cleared
    (`zero_grad`), in the forward passes in which the part was not frozen (`toggle_optimizer` of another optimizer).

    Args:
        trainer: That trains; its optimizers are by now those with the private one.
        module: What is trained.
        private: The place of the private optimizer among all, and the name of the part that it trains.
        steps: The private steps.
        guard: Looks at what happens between the steps; None: nobody does, and nothing is proven.
        verify: How many batches are looked at closely at first.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any,
        private: tuple[int, str],
        steps: PrivateSteps,
        guard: Guard | None,
        *,
        verify: int,
    ) -> None:
        self._trainer, self._module, self._guard = trainer, module, guard
        (self._place, self._name), self._private = private, steps
        self._index = self._made = 0
        self._rehearsal = Rehearsal(trainer, module)
        steps.clipping.remedy = (
            f"Show {self._name!r} as many generated records as real ones, in a call of its own. In the part of another "
            "optimizer, where it may be shown any number, freeze it: self.toggle_optimizer(optimizer)."
        )
        self._undo = contextlib.ExitStack()
        self._undo.callback(put(steps.optimizer, "step", self._counted(steps.optimizer.step)))
        self._others: Others | None = None
        if guard is not None:
            self._others = Others(
                trainer,
                module,
                private,
                self._rehearsal,
                steps.clipping,
                guard.watch,
                verify=verify,
                luck=steps.proof.luck,
            )
            self._undo.callback(self._others.close)
            self._undo.callback(put(trainer.strategy, "training_step", self._watched(trainer.strategy.training_step)))

    def begin(self, batch: Any, index: int, examples: int) -> None:
        """Before a batch is trained on.

        Raises:
            FitError: Another optimizer than the private one would see it.
        """
        self._index, self._made = index, 0
        if self._others is not None:
            self._others.begin(batch, index, examples)

    def end(self) -> None:
        """After it was trained on.

        Raises:
            FitError: There was no private step.
        """
        if not self._made:
            raise FitError(
                f"training_step made no step with the optimizer of {self._name!r}; expected one for every batch, "
                "because the accountant counts every batch that was drawn. Step it once, whatever the batch is; for "
                "several steps of the others, step those several times."
            )

    def finish(self) -> None:
        """After the last batch."""
        if self._others is not None:
            self._others.finish()

    def rehearse(self, batch: Any, times: float) -> None:
        """Run a training step up to the private step, of which nobody hears.

        Args:
            batch: Any batch.
            times: What every loss is multiplied with on its way back.

        Raises:
            ValueError: There is no private step.
        """
        reached: list[int] = []

        def stepped(place: int) -> None:
            if place == self._place:
                reached.append(place)
                raise Enough

        def cleared(place: int) -> None:
            if place == self._place:
                self._private.clipping.forget()

        with silenced(self._module), without_loggers(self._trainer):
            self._rehearsal.run(batch, self._index, times=times, stepped=stepped, cleared=cleared)
        if not reached:
            raise ValueError("The training step made no private step.")

    def close(self) -> None:
        """Leave everything as it was."""
        self._undo.close()

    def _counted(self, step: Any) -> Any:
        @wraps(step)
        def counted(*args: Any, **options: Any) -> Any:
            self._rehearsal.refuse_steps()
            self._made += 1
            if self._made > 1:
                raise FitError(
                    f"training_step steps the optimizer of {self._name!r} {self._made} times in a batch; expected "
                    f"once: the accountant counts one step for every batch that is drawn. {STOPPED} Step it once, and "
                    "the others as often as you like."
                )
            return step(*args, **options)

        return counted

    def _watched(self, training_step: Any) -> Any:
        @wraps(training_step)
        def watched(*args: Any, **options: Any) -> Any:
            assert self._guard is not None
            assert self._others is not None
            self._guard.trained()
            with self._others.training():
                return training_step(*args, **options)

        return watched
