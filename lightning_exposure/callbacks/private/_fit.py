"""`PrivateFit`: one fit whose steps are private, from its first batch to its last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure.callbacks.private._loaders import next_draw, refuse_change
from lightning_exposure.callbacks.private._refusals import refuse_exchanged
from lightning_exposure.callbacks.private._virtual import VirtualBatches
from lightning_exposure.callbacks.private.manual.choosing import private_place
from lightning_exposure.callbacks.private.manual.steps import ManualSteps
from lightning_exposure.callbacks.private.watching.guarding import Guard
from lightning_exposure.callbacks.private.watching.monitors import Monitors
from lightning_exposure.callbacks.private.watching.probing import Probing
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.poisson import PoissonLoader
from lightning_exposure.privacy.steps.private_steps import PrivateSteps
from lightning_exposure.privacy.steps.proof import Promise


class PrivateFit:
    """Puts private steps into a Trainer, looks at every batch, and takes them out again.

    Args:
        trainer: Who trains.
        module: What is trained.
        loader: Where its batches come from.
        clipping: Of the module, not yet attached.
        promise: What the accountant is told.
        count: Called once for every private step, before the weights move.
        verify: How many steps are looked at closely at first; 0: nothing is proven.
        guard: Looks at what happens between the steps; None: nobody does. It lasts longer than the steps.
        most: How many examples are trained on at a time, at most; None: all of a batch.
        private: The name of the part that the clipping is of, if the module makes its steps itself; None: it does not.
        verbose: Whether to say what may be monitored.

    Attributes:
        steps: The private steps.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        loader: PoissonLoader,
        *,
        clipping: Clipping,
        promise: Promise,
        count: Callable[[], None],
        verify: int,
        guard: Guard | None,
        most: int | None,
        verbose: bool,
        private: str | None = None,
    ) -> None:
        self._trainer, self._loader, self._guard, self._most = trainer, loader, guard, most
        loader.divide(most)
        place = private_place(trainer.optimizers, module, private)
        inner = trainer.optimizers[place]
        self.steps = PrivateSteps(
            clipping,
            inner,
            noise_multiplier=promise.noise_multiplier,
            expected_batch_size=loader.batch_size,
            count=count,
            distributed=trainer.world_size > 1,
            verify=verify,
            watch=None if guard is None else guard.watch,
            promise=promise,
        )
        self._manual: ManualSteps | None = None
        self._optimizers: list[Any] = [*trainer.optimizers]
        self._undo = contextlib.ExitStack()
        self._undo.callback(self._release)
        try:
            self._enter(module, verify, verbose, place)
            if private is not None:
                self._manual = ManualSteps(trainer, module, (place, private), self.steps, guard, verify=verify)
                self._undo.callback(self._manual.close)
            rehearse = None if self._manual is None else self._manual.rehearse
            self._probing = Probing(trainer, module, self.steps, loader, verify, rehearse)
        except BaseException:
            self.close()
            raise

    def _enter(self, module: LightningModule, verify: int, verbose: bool, place: int) -> None:
        trainer = self._trainer
        if self._guard is not None:
            self._guard.follow(self.steps)
            self._undo.callback(self._guard.follow, None)
        self._monitors = Monitors(trainer, module, verbose=verbose)
        self._undo.callback(self._monitors.close)
        self._virtual = None
        if self._most is not None:
            self._virtual = VirtualBatches(trainer, module, self.steps, lambda *part: self._probing.part(*part))
            self._undo.callback(self._virtual.close)
        self._optimizers[place] = self.steps.optimizer
        trainer.optimizers = self._optimizers
        model: Any = trainer.strategy.model
        if hasattr(model, "no_sync"):
            # Nothing is to be reduced but the private gradients, and the private optimizer does that.
            self._undo.enter_context(model.no_sync())

    @property
    def sample_rate(self) -> float:
        """With which probability a record is in a batch."""
        return self._loader.sample_rate

    def read(self, loader: PoissonLoader) -> None:
        """Go on with the loader that a new epoch reads.

        Raises:
            FitError: It is not of the same data as the one before.
        """
        refuse_change(self._loader, loader)
        self._loader = loader
        loader.divide(self._most)

    def begin(self, batch: Any, index: int) -> None:
        """Before a batch is trained on: say how many examples there are.

        Raises:
            FitError: It would not be private.
        """
        refuse_exchanged(self._trainer.optimizers, self._optimizers)
        size, draw, rest = next_draw(self._loader)
        if self._guard is not None:
            self._guard.begin(batch, index)
        self._probing.begin(batch, index, draw, rest.sizes[0])
        if self._virtual is not None:
            self._virtual.begin(batch, index, rest)
        if self._manual is not None:
            self._manual.begin(batch, index, size)
        self.steps.begin(size, draw, first=rest.sizes[0])

    def end(self, batch: Any) -> None:
        """After it was trained on: prove its step.

        Raises:
            FitError: It was not private.
        """
        if self._manual is not None:
            self._manual.end()
        self.steps.end()
        self._probing.end(batch)
        self._monitors.check()

    def finish(self) -> None:
        """After the last batch: look at all steps together, and at the weights a last time but one.

        Raises:
            FitError: They were not private.
        """
        self.steps.finish()
        self._probing.finish()
        if self._manual is not None:
            self._manual.finish()
        if self._guard is not None:
            self._guard.end()

    def close(self) -> None:
        """Take the private steps out of the Trainer again; may be called at any time."""
        self._undo.close()

    def _release(self) -> None:
        self._loader.divide(None)
        inner, private = self.steps.close(), self.steps.optimizer
        if any(each is private for each in self._trainer.optimizers):
            self._trainer.optimizers = [inner if each is private else each for each in self._trainer.optimizers]
