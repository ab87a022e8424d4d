"""`PrivateSteps`: the steps of a module made private, counted, and at first proven to be so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.adaptive import FollowedNorm
from lightning_exposure.privacy.steps.optimizer import private_optimizer
from lightning_exposure.privacy.steps.proof import Promise, StepProof
from lightning_exposure.privacy.steps.secure import AnyGenerator
from lightning_exposure.privacy.steps.watching import BEFORE, BETWEEN, Watch


class PrivateSteps:
    """Makes the steps of an optimizer private, between `__init__` and `close`.

    Around every batch, `begin` and `end` are called; in between, `optimizer` steps once. If memory does not hold a
    batch, it comes in parts: `end_part` and `begin_part` are called between two of them. Nothing here knows of
    Lightning.

    Args:
        clipping: Of the module that is trained, not yet attached.
        optimizer: The user's own optimizer.
        noise_multiplier: The standard deviation of the noise, in units of the clipping norm.
        expected_batch_size: What the sums of one process are divided by: a batch size that is public.
        count: Called once for every step, before the weights move; what it raises keeps them from moving.
        distributed: Whether several processes train together.
        verify: How many steps with examples in them are looked at closely at first; 0: nothing is proven.
        promise: What the accountant is told, and whether the clipping norm adapts; None: what is told here.
        watch: Sees what moves the weights between the steps; None: nobody looks.

    Attributes:
        optimizer: What has to be stepped in the place of the user's optimizer.
        clipping: As given.
        proof: What looks at the steps.
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
        promise: Promise | None = None,
        watch: Watch | None = None,
    ) -> None:
        promise = promise or Promise(noise_multiplier, clipping.max_grad_norm)
        tracking = promise.tracking
        self.optimizer = private_optimizer(
            optimizer,
            clipping,
            noise_multiplier=noise_multiplier if tracking is None else tracking.gradient_noise,
            expected_batch_size=expected_batch_size,
            distributed=distributed,
        )
        try:
            clipping.attach()
        except Exception:
            self.optimizer.release()
            raise
        self.clipping = clipping
        self._count = count
        self.optimizer.followed = None if tracking is None else FollowedNorm(tracking, clipping.max_grad_norm)
        self.proof = StepProof(
            clipping.module, self.optimizer, optimizer, promise, verify=verify, distributed=distributed
        )
        self._watch = watch
        self._private = self._steps = 0  # in this batch
        self._proven = False  # this batch
        self.optimizer.on_part = self.proof.part
        self.optimizer.on_clipped = self.proof.clipped
        self.optimizer.attach_step_hook(self._on_private_step)
        self._hooks: list[Any] = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def use_noise(self, generator: AnyGenerator) -> None:
        """Take the noise from a generator from now on."""
        self.optimizer.generator = generator

    def begin(self, examples: int, draw: tuple[Any, ...] | None = None, *, first: int | None = None) -> None:
        """Say how many examples the coming batch has; 0: whatever the module is shown counts as nothing.

        Args:
            examples: Their number.
            draw: Which records they are, and the state of the generator before they were drawn (see `poisson.Draw`);
                None if nobody knows.
            first: How many of them are in the first part of the batch; None: all.
        """
        self.clipping.begin(examples if first is None else first)
        self._private = self._steps = 0
        self._proven = False
        self._come_last_and_first()
        if self._watch is not None:
            self._watch.glance(BETWEEN)
        self.proof.begin(examples, draw)

    def end_part(self) -> None:
        """After the backward pass of a part of the batch: clip its examples; others follow."""
        self.optimizer.gather()

    def begin_part(self, examples: int) -> None:
        """Say how many examples the next part of the batch has; 0: whatever the module is shown counts as nothing."""
        self.clipping.begin(examples)

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
        """Prove the step of this batch, if it was made and not proven yet.

        Raises:
            FitError: It was not private.
        """
        if self._steps and not self._proven:
            self._proven = True
            self.proof.end()

    def finish(self) -> None:
        """Look at all steps together, when the last one was made.

        Raises:
            FitError: They were not private.
        """
        self.proof.finish()

    def close(self) -> Optimizer:
        """Leave the module and the optimizer as they were. Returns the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.clipping.detach()
        return self.optimizer.release()

    def _on_private_step(self, optimizer: Any) -> None:
        self.proof.noised()
        self._count()
        self._private += 1

    def _before_step(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        self._steps += 1
        self.proof.before_step()
        if self._watch is not None:
            self._watch.check_groups()
            self._watch.check(BEFORE, quick=True)

    def _after_step(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        if self._watch is not None:
            self._watch.settle_step()
        self.proof.after_step()
        if self._watch is not None and self._watch.allows:
            self.prove()  # now, before anything that is allowed to moves the weights

    def _come_last_and_first(self) -> None:
        """Of all hooks on the optimizer, the last before it steps and the first thereafter: others may move weights."""
        for hook, last in zip(self._hooks, (True, False), strict=True):
            hooks = hook.hooks_dict_ref()
            if hooks is not None and hook.id in hooks:
                hooks.move_to_end(hook.id, last=last)
