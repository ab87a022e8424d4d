"""`Guard`: looks after a private training run from its first step to the end of its fit, between the private steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure.callbacks.private.watching._carrying import Carried, Received
from lightning_exposure.callbacks.private.watching._schedules import Blind
from lightning_exposure.callbacks.private.watching._twins import Twins
from lightning_exposure.callbacks.private.watching.seams import exempt_hooks, put, wrap
from lightning_exposure.privacy.steps.private_steps import PrivateSteps
from lightning_exposure.privacy.steps.saved_state import SavedState, saved_values
from lightning_exposure.privacy.steps.watching import Watch


class Guard:
    """Refuses what moves the weights otherwise than private steps, and what is saved beside them and knows the data.

    Args:
        trainer: Who trains.
        module: What is trained.
        callback: The one that makes it private.
        exempt: The names of what the user vouches for.
        seed: Of when to look again at saved state.
        place: Of the private optimizer among those of the Trainer.

    Attributes:
        watch: Over the weights.
        trained: To be called when a batch is about to be trained on: refuses one that was changed.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        callback: object,
        exempt: tuple[str, ...],
        seed: int,
        place: int = 0,
    ) -> None:
        optimizer = trainer.optimizers[place]
        others = [each for each in trainer.optimizers if each is not optimizer]
        self.watch = Watch(module, optimizer, *others)
        self._twins = Twins(trainer, module)
        self._saved = SavedState(module, exempt=exempt, hooked=self._twins.saves, seed=seed)
        self._steps: PrivateSteps | None = None
        self._undo = contextlib.ExitStack()
        saved = [*saved_values(module), *(name for name in exempt if name.startswith("checkpoint."))]
        for owner, hook in list(exempt_hooks(exempt, trainer, module, callback, saved)):
            self._undo.callback(wrap(owner, hook, self._allowing))
        self._blind = Blind(trainer, module, optimizer, callback, exempt)
        self._carried = Carried(module, self._twins, exempt, seed)
        self._received = Received(trainer)
        self._undo.callback(self._received.undo)
        self.trained = self._received.check
        for undo in _guard_settings(module, self.watch, self._blind, self._received.check):
            self._undo.callback(undo)

    def follow(self, steps: PrivateSteps | None) -> None:
        """Say who makes the private steps; None: nobody any more."""
        self._steps = steps

    def begin(self, batch: Any, index: int) -> None:
        """Look at what is saved and what is carried over, before a batch; and whether it is still what it was."""
        self._received.check(batch)
        if self._twins.possible:
            self._saved.look(self._twins, epoch=index == 0)
            self._carried.look(self._twins.last, batch)
        self._twins.show(batch, index)
        self._blind.begin()

    def end(self) -> None:
        """Look at everything a last time, after the last batch."""
        self.watch.check()
        if self._twins.possible:
            self._saved.look(self._twins, last=True)

    def close(self) -> None:
        """Leave everything as it was."""
        self._undo.close()

    @contextlib.contextmanager
    def _allowing(self) -> Iterator[None]:
        if self._steps is not None:
            self._steps.prove()  # what comes now would look like a step gone wrong
        with self.watch.allowing():
            yield
            self._received.settle()


def _guard_settings(
    module: Any, watch: Watch, blind: Blind, trained: Callable[[], None] = lambda: None
) -> Iterator[Callable[[], None]]:
    """Let nothing but schedules and the module's `optimizer_step` set learning rates. Yields what undoes it.

    Args:
        module: What is trained.
        watch: Over the settings of its optimizer.
        blind: Tells whether they follow the data.
        trained: Called when a batch is about to be trained on.
    """
    step, schedule = module.optimizer_step, module.lr_scheduler_step

    @wraps(step)
    def optimizer_step(*args: Any, **options: Any) -> Any:
        watch.check_groups()
        given = list(args)
        if len(given) > 3:
            closure = given[3]

            def guarded() -> Any:
                # From here on the batch is known: what is set now, and until the weights have moved, may follow it.
                watch.settle_groups()
                trained()
                result = closure()
                watch.check_groups()
                return result

            given[3] = guarded
        result = step(*given, **options)
        if not watch.is_set() and blind.check_step(step, given, options, watch.settled):
            watch.settle_groups()
        watch.check_groups()
        return result

    @wraps(schedule)
    def lr_scheduler_step(*args: Any, **options: Any) -> Any:
        watch.check_groups()
        if not watch.allows and len(args) == 2:
            blind.check_schedule(schedule, *args)
        result = schedule(*args, **options)
        watch.settle_groups()
        return result

    yield put(module, "optimizer_step", optimizer_step)
    yield put(module, "lr_scheduler_step", lr_scheduler_step)
