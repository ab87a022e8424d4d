"""What hooks do to the batches: changed before they are trained on, or carried over into the next one.

The probes run `training_step` and what sees the batch before it. A hook there can change the batch, and one after it
can keep something of the batch for the next: a queue of features, a hidden state, a running loss. So the batch that is
trained on must be the one that came out of the loader; and a copy of the module goes through a whole batch, hooks
included, with two sets of data: what it makes of the next batch must be the same.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import torch

from lightning_exposure.callbacks.private._refusals import is_overridden
from lightning_exposure.callbacks.private.watching._batches import alike, batch_prints
from lightning_exposure.callbacks.private.watching._twins import Twins
from lightning_exposure.callbacks.private.watching.seams import put
from lightning_exposure.errors import FitError, MixingError
from lightning_exposure.measuring import quiet
from lightning_exposure.privacy.steps.watching import STOPPED

_HOOKS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "backward",
)
_CLOSE = 1e-5
_FIRST = 3


class Carried:
    """Looks for what is carried over from one batch to the next by the hooks of a module.

    Args:
        module: What is trained.
        twins: Can go through a batch again.
        exempt: Names of hooks that the user vouches for.
        seed: Of when to look.
    """

    def __init__(self, module: Any, twins: Twins, exempt: tuple[str, ...], seed: int) -> None:
        own = [name for name in _HOOKS if is_overridden(name, module, "LightningModule")]
        self._hooks = [name for name in own if name not in exempt]
        self._backward = "backward" in self._hooks
        self._module, self._twins = module, twins
        self._chance = random.Random(seed)
        self._seen = self._due = 0

    def look(self, last: Any, coming: Any) -> None:
        """Before a batch: would it be trained on in another way, if the last one had been another?

        Args:
            last: The batch before.
            coming: The one to come.

        Raises:
            MixingError: It would.
        """
        self._seen += 1
        other = alike(last)
        if not self._hooks or self._seen < self._due or batch_prints(other) == batch_prints(last):
            return
        if self._seen >= _FIRST:
            self._due = self._seen + self._chance.randint(1, 2 * self._seen)
        self._refuse_scaling()
        one = self._after(last, coming)
        another = self._after(other, coming)
        if one is None or another is None or _same(one, another):
            return
        again = self._after(last, coming)
        if again is None or not _same(one, again):
            return  # it is never the same: nothing can be told
        raise MixingError(
            f"What a batch is trained on depends on the batch before it: {type(self._module).__name__} carries a state "
            f"over in its hooks ({', '.join(self._hooks)}), such as hidden states, a queue of features, or a running "
            f"loss, in which other examples have a part. {STOPPED} Begin every batch with a fresh state; or, if no "
            f'training data are in it, vouch for the hook: DifferentialPrivacy(post_processing=["{self._hooks[-1]}"]).'
        )

    def _after(self, batch: Any, coming: Any) -> list[float] | None:
        """What comes out of a batch after another one; None if that cannot be tried."""
        twin = self._twins.make()
        if twin is None:
            return None
        with quiet(self._module):
            _seed()
            if not self._twins.run(twin, copy.deepcopy(batch)):
                return None
            _seed()
            loss = self._twins.loss(twin, copy.deepcopy(coming))
            if loss is None:
                return None
            return [loss, *(self._scales(twin) if self._backward else [])]

    def _refuse_scaling(self) -> None:
        twins = [self._twins.make() for _ in range(2)] if self._backward else []
        if not twins or None in twins:
            return
        with quiet(self._module):
            scales = [list(self._scales(twin, value)) for twin, value in zip(twins, (1.0, 2.0), strict=True)]
        if scales[0] != scales[1]:
            raise MixingError(
                f"{type(self._module).__name__}.backward scales the gradients by the loss of the batch, so that the "
                f"gradient of an example depends on the others. {STOPPED} Scale by numbers that no data are behind."
            )

    @staticmethod
    def _scales(twin: Any, value: float = 1.0) -> Iterator[float]:
        """By how much a `backward` of the module's own makes gradients larger than the loss says."""
        with torch.enable_grad():
            loss = torch.tensor(value, requires_grad=True)
            try:
                twin.backward(loss * 1.0)
            except Exception:
                return
        yield 0.0 if loss.grad is None else float(loss.grad)


class Received:
    """Holds on to what the batch was when it came from the loader, until it is trained on.

    Args:
        trainer: Who trains; its strategy hands the batches out.
    """

    def __init__(self, trainer: Any) -> None:
        self._prints: list[Hashable] | None = None
        self._batch: Any = None
        strategy = trainer.strategy
        original = strategy.batch_to_device

        def batch_to_device(*args: Any, **options: Any) -> Any:
            batch = original(*args, **options)
            if trainer.training:
                self.settle(batch)
            return batch

        self.undo = put(strategy, "batch_to_device", batch_to_device)

    def settle(self, batch: Any = None) -> None:
        """Take a batch as it is; without one, the last."""
        self._batch = self._batch if batch is None else batch
        self._prints = batch_prints(self._batch)

    def check(self, batch: Any = None) -> None:
        """Refuse a batch that is not what it was.

        Args:
            batch: The one that is trained on, if it is known; it must be the same.

        Raises:
            FitError: It was changed.
        """
        if self._prints is not None and batch_prints(self._batch if batch is None else batch) != self._prints:
            raise FitError(
                "The batch was changed in an on_train_batch_start, of the module or of a callback, before it was "
                "trained on: there nobody can see whether its examples are mixed, as when they are standardized over "
                f"the batch. {STOPPED} Change examples one by one in training_step, in the dataset or in "
                "on_after_batch_transfer; or vouch for the callback or hook by name: "
                'DifferentialPrivacy(post_processing=["on_train_batch_start"]).'
            )


def _same(one: list[float], another: list[float]) -> bool:
    return bool(np.allclose(one, another, rtol=_CLOSE, atol=1e-9, equal_nan=True))


def _seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
