"""`PrivateSteps`: the steps of a module made private, counted, and at first proven to be so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.clipping import Clipping
from lightning_exposure.privacy.optimizer import private_optimizer
from lightning_exposure.privacy.proof import (
    Snapshot,
    check_clipping,
    check_noise,
    weights_of,
)
from lightning_exposure.privacy.watching import BEFORE, BETWEEN, Watch


class PrivateSteps:
    """Makes the steps of an optimizer private, between `__init__` and `close`.

    Around every batch, `begin` and `end` are called; in between, `optimizer` steps once. Nothing here knows of
    Lightning.

    Args:
        clipping: Of the module that is trained, not yet attached.
        optimizer: The user's own optimizer.
        noise_multiplier: The standard deviation of the noise, in units of the clipping norm.
        expected_batch_size: What the sums of one process are divided by: a batch size that is public.
        count: Called once for every step, before the weights move; what it raises keeps them from moving.
        distributed: Whether several processes train together.
        verify: How many steps with examples in them are proven to be private.
        watch: Sees what moves the weights between the steps; None: nobody looks.

    Attributes:
        optimizer: What has to be stepped in the place of the user's optimizer.
    """

    def __init__(
        self,
        clipping: Clipping,
        optimizer: Optimizer,
        *,
        noise_multiplier: float,
        expected_batch_size: float,
        count: Callable[[], None],
        distributed: bool = False,
        verify: int = 3,
        watch: Watch | None = None,
    ) -> None:
        self.optimizer = private_optimizer(
            optimizer,
            clipping,
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            distributed=distributed,
        )
        try:
            clipping.attach()
        except Exception:
            self.optimizer.release()
            raise
        self._inner = optimizer
        self._clipping = clipping
        self._count = count
        self._distributed = distributed
        self._unproven = verify
        self._watch = watch
        self._examples = 0
        self._private = self._steps = 0  # in this batch
        self._weights: dict[str, Tensor] = {}
        self._snapshot: Snapshot | None = None
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self.optimizer.attach_step_hook(self._on_private_step)
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def use_noise(self, generator: torch.Generator) -> None:
        """Take the noise from a generator from now on."""
        self.optimizer.generator = generator

    def begin(self, examples: int) -> None:
        """Say how many examples the coming batch has; 0: whatever the module is shown counts as nothing."""
        self._clipping.begin(examples)
        self._examples = examples
        self._private = self._steps = 0
        self._snapshot, self._gradients = None, {}
        self._come_last_and_first()
        if self._watch is not None:
            self._watch.glance(BETWEEN)
        if self._unproven:
            self._weights = weights_of(self._clipping.module)

    def end(self) -> None:
        """Check that the batch led to exactly one step, and that this was private.

        Raises:
            FitError: It did not, or was not.
        """
        if self._private != 1 or self._steps != 1:
            raise FitError(
                f"A batch led to {self._private} private steps, and the optimizer itself made {self._steps}; expected "
                "one, and the same. Something steps an optimizer by itself, such as an optimizer_step of the module's "
                "own, or puts another one into the Trainer. The training was stopped, because it would not have been "
                "private."
            )
        self.prove()

    def prove(self) -> None:
        """Prove the step of this batch, if it is one of those that are proven and was not proven yet.

        Raises:
            FitError: It was not private.
        """
        snapshot, self._snapshot = self._snapshot, None
        if self._unproven and snapshot is not None:
            self._prove(snapshot)

    def close(self) -> Optimizer:
        """Leave the module and the optimizer as they were. Returns the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._snapshot, self._weights, self._gradients = None, {}, {}
        self._clipping.detach()
        return self.optimizer.release()

    def _on_private_step(self, optimizer: Any) -> None:
        self._count()
        self._private += 1

    def _before_step(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        self._steps += 1
        if self._unproven and self._steps == 1:
            self._snapshot = Snapshot(self._clipping.module, self._inner, self._weights)
        if self._watch is not None:
            self._watch.check(BEFORE, quick=True)

    def _after_step(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        if self._watch is not None:
            self._watch.settle_step()
        if self._snapshot is not None and not self._gradients:
            parameters = [value for group in optimizer.param_groups for value in group["params"]]
            self._gradients = {value: value.grad.clone() for value in parameters if value.grad is not None}
        if self._watch is not None and self._watch.allows:
            self.prove()  # now, before anything that is allowed to moves the weights

    def _come_last_and_first(self) -> None:
        """Of all hooks on the optimizer, the last before it steps and the first thereafter: others may move weights."""
        for hook, last in zip(self._hooks, (True, False), strict=True):
            hooks = hook.hooks_dict_ref()
            if hooks is not None and hook.id in hooks:
                hooks.move_to_end(hook.id, last=last)

    def _prove(self, snapshot: Snapshot) -> None:
        private, norm = self.optimizer, self._clipping.max_grad_norm
        sums = dict(private.last_sums)
        check_clipping(sums.values(), self._clipping.norms, examples=self._examples, max_grad_norm=norm)
        examples, processes = self._examples, 1
        if self._distributed:
            # The noise is on the sum over all processes.
            processes = torch.distributed.get_world_size()
            counted = torch.tensor(float(examples), device=next(iter(sums.values())).device)
            for total in (*sums.values(), counted):
                torch.distributed.all_reduce(total)
            examples = int(counted)
        scale = private.expected_batch_size * processes if private.loss_reduction == "mean" else 1.0
        deviation = private.noise_multiplier * norm
        missing = [value for value in sums if value not in self._gradients]
        if missing:
            raise FitError(
                f"{len(missing)} parameters had no gradient when the optimizer stepped. Something took the private "
                "gradients away. The training was stopped, because it would not have been private."
            )
        check_noise(list(sums.values()), [self._gradients[value] for value in sums], scale=scale, deviation=deviation)
        snapshot.check(self._clipping.module, self._gradients, {value: total / scale for value, total in sums.items()})
        if examples:
            self._unproven -= 1
