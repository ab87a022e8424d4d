"""Some batches of a training run looked at twice: do their examples mix, and are they clipped?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import default_collate

from lightning_exposure._lightning import transferred
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks.private._refusals import is_overridden
from lightning_exposure.callbacks.private.watching.rerunning import (
    hooks_before_step,
    loss_of,
    run_step,
    silenced,
    without_loggers,
)
from lightning_exposure.privacy.steps.poisson import Draw, PoissonLoader
from lightning_exposure.privacy.steps.private_steps import PrivateSteps
from lightning_exposure.privacy.steps.proof.mixing import MixingProbe
from lightning_exposure.privacy.steps.proof.reruns.examples import Examples
from lightning_exposure.privacy.steps.proof.reruns.probes import Probes
from lightning_exposure.privacy.steps.proof.reruns.stepped import SteppedExamples, SteppedProbe, Steps
from lightning_exposure.privacy.steps.proof.reruns.undoing import LightState

_ROUNDING = {True: 0.05, False: 1e-3}
"""By which part of its norm a gradient may be off, in half precision and otherwise."""
_PRECISION = {True: 2.0**-7, False: 2.0**-20}
"""By which part numbers may be off in a forward pass: some of their last digits."""
_RECORDS = 7
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class Probing:
    """Runs parts of some batches again, to see whether their examples mix and are clipped.

    Args:
        trainer: That trains.
        module: What is trained.
        steps: Its private steps.
        loader: Where its batches come from.
        verify: How many batches are looked at, at first; 0: none, ever.
        rehearse: Runs a training step of a module that makes its steps itself, up to the private one; None: it makes
            none.

    Attributes:
        notes: What could not be seen, and why.
    """

    def __init__(
        self,
        trainer: Trainer,
        module: LightningModule,
        steps: PrivateSteps,
        loader: PoissonLoader,
        verify: int,
        rehearse: Steps | None = None,
    ) -> None:
        self._trainer, self._module, self._loader = trainer, module, loader
        self._batch_idx = self._examples = 0
        proof, is_half = steps.proof, "16" in str(trainer.precision)
        probe = (MixingProbe if rehearse is None else SteppedProbe)(
            Examples(steps.clipping, self._run, proof.coordinates)
            if rehearse is None
            else SteppedExamples(steps.clipping, rehearse, proof.coordinates, module),
            module,
            loss_reduction=steps.clipping.loss_reduction,
            max_grad_norm=lambda: proof.bound.norm,
            tolerance=_ROUNDING[is_half],
            precision=_PRECISION[is_half],
            luck=proof.luck,
        )
        self._probes = Probes(probe, proof.luck, verify=verify, say=lambda text: say(trainer, text))

    @property
    def notes(self) -> list[str]:
        """What could not be seen, and why."""
        return self._probes.notes

    def begin(self, batch: Any, batch_idx: int, draw: Draw, examples: int) -> None:
        """Before a batch is trained on.

        Args:
            batch: What the module is shown: the batch, or the first part of it.
            batch_idx: Its number.
            draw: Which records the whole batch has.
            examples: How many examples the module is shown.

        Raises:
            MixingError: Its examples mix.
            FitError: They are not clipped.
        """
        self._batch_idx, self._examples = batch_idx, examples
        if len(draw.records) > 1:
            make = batch_again(self._trainer, self._module, self._loader)
            read, by_user = self._records, draw.members is not None
            if by_user and hasattr(self._loader.dataset, "__getitems__"):
                # Whoever reads many records at once can move them too, such as a database.
                make, read = _read_and_made(self._loader.dataset, make or default_collate), self._numbers
            self._probes.collate(make, lambda: read(draw), self._loader.collate_fn, in_order=by_user)
        self._probes.begin(batch, self._examples)

    def part(self, batch: Any, examples: int) -> None:
        """Before another part of the same batch is trained on.

        Raises:
            MixingError: Its examples mix.
            FitError: They are not clipped.
        """
        self._probes.begin(batch, examples)

    def end(self, batch: Any) -> None:
        """After it was trained on.

        Raises:
            MixingError: Its examples mix.
            FitError: They are not clipped.
        """
        self._probes.end(batch, self._examples)

    def finish(self) -> None:
        """Say so if there was never a batch to look at."""
        self._probes.finish()

    def _run(self, batch: Any) -> Tensor | None:
        """The loss of a training step, of which nobody hears; of the hooks, only those that see the batch before it."""
        with silenced(self._module), without_loggers(self._trainer):
            hooks_before_step(self._module, batch, self._batch_idx)
            return loss_of(run_step(self._trainer, self._module, batch, self._batch_idx))

    def _numbers(self, draw: Draw) -> list[int]:
        """The numbers in the dataset of some of the records of the batch."""
        if draw.members is not None:
            return [record for records in draw.members for record in records][:_RECORDS]
        first, every = self._loader.rank, self._loader.world_size
        return [first + every * number for number in draw.records[:_RECORDS]]

    def _records(self, draw: Draw) -> list[Any]:
        """Some of the records of the batch."""
        return [self._loader.dataset[number] for number in self._numbers(draw)]


def _read_and_made(dataset: Any, make: Callable[[list[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """A function that makes a batch of the numbers of some records."""
    return lambda numbers: make(dataset.__getitems__(list(numbers)))


def batch_again(
    trainer: Trainer, module: LightningModule, loader: PoissonLoader
) -> Callable[[Sequence[Any]], Any] | None:
    """A function that makes a batch of some records, as the loader and the hooks of module and data module do.

    Args:
        trainer: That trains.
        module: What is trained.
        loader: Where its batches come from.

    Returns:
        None if both are those of PyTorch and Lightning, which mix nothing.
    """
    collate = loader.collate_fn
    datamodule = getattr(trainer, "datamodule", None)
    hooked = any(
        is_overridden(name, source, kind)
        for name in _TRANSFERS
        for source, kind in ((module, "LightningModule"), (datamodule, "LightningDataModule"))
    )
    if collate in (None, default_collate) and not hooked:
        return None

    def make(records: Sequence[Any]) -> Any:
        batch = default_collate(list(records)) if collate is None else collate(list(records))
        if hooked:
            before = LightState(module)  # a hook may keep something of the batch that is trained on
            try:
                with torch.no_grad():
                    batch = transferred(module, batch)
            finally:
                before.restore()
        return batch

    return make
