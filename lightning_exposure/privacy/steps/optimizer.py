"""The optimizer of private training: Opacus' own, which takes its clipped sums from `Clipping`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_exposure._checks import number
from lightning_exposure._opacus import add_to_sum, clean_parameter
from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.adaptive import FollowedNorm
from lightning_exposure.privacy.steps.secure import SecureGenerator, standard_normal


def private_optimizer(
    optimizer: Optimizer,
    clipping: Clipping,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    generator: torch.Generator | SecureGenerator | None = None,
    distributed: bool = False,
) -> ClippedOptimizer:
    """Make an optimizer private: it steps along the clipped sum of a batch, with noise.

    Args:
        optimizer: Any optimizer of the module's trainable parameters, all of them and no others.
        clipping: Of that module, attached; its `begin` is called before every batch.
        noise_multiplier: The standard deviation of the noise, in units of the clipping norm.
        expected_batch_size: What the sum is divided by, if the loss is a mean: about the number of examples of a batch
            (per process). A number that is public, as the batch size that was asked for, and not one that is computed
            from the number of records: whoever sees the gradients can tell it.
        generator: Where the noise comes from; without one, from PyTorch's global generator.
        distributed: Whether the processes of `torch.distributed` train one model together. Then the first of them
            adds the noise, and the gradients are summed over all.

    Returns:
        An `opacus.optimizers.DPOptimizer` or `DistributedDPOptimizer`.

    Raises:
        ModelError: The optimizer does not hold exactly the trainable parameters of the module.

    Example:
        >>> layer = nn.Linear(3, 1)
        >>> clipping = Clipping(layer, max_grad_norm=1.0)
        >>> sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> optimizer = private_optimizer(sgd, clipping, noise_multiplier=1.0, expected_batch_size=5)
        >>> with clipping:
        ...     clipping.begin(examples=5)
        ...     layer(torch.randn(5, 3)).mean().backward()
        ...     optimizer.step()
        >>> layer.weight.grad.shape
        torch.Size([1, 3])
    """
    noise_multiplier = number("noise_multiplier", noise_multiplier, at_least=0)
    expected_batch_size = number("expected_batch_size", expected_batch_size, above=0)
    _refuse_other_parameters(optimizer, clipping.module)
    kind = _DistributedClippedOptimizer if distributed else ClippedOptimizer
    return kind(
        optimizer,
        clipping=clipping,
        noise_multiplier=noise_multiplier,
        max_grad_norm=clipping.max_grad_norm,
        expected_batch_size=expected_batch_size,
        loss_reduction=clipping.loss_reduction,
        generator=generator,
    )


class ClippedOptimizer(DPOptimizer):  # type: ignore[misc]
    """What replaces the per-example gradients in an optimizer of Opacus.

    Attributes:
        clipping: Where the clipped sums come from.
        last_sums: The clipped sum of each parameter in the last step, before the noise.
        on_part: Called with the clipped sums of a part of the batch, and how many examples it had.
        on_clipped: Called when all parts are in `last_sums`.
        on_norms: Called with the clipping whenever it has clipped the examples of a step, or a part of them.
        followed: Moves the clipping norm from step to step; None: it stays.
    """

    noise_multiplier: float

    def __init__(self, optimizer: Optimizer, *, clipping: Clipping, **options: Any) -> None:
        super().__init__(optimizer, **options)
        self.clipping = clipping
        self.last_sums: dict[nn.Parameter, Tensor] = {}
        self.on_part: Callable[[dict[nn.Parameter, Tensor], int], None] | None = None
        self.on_clipped: Callable[[], None] | None = None
        self.on_norms: list[Callable[[Clipping], None]] = []
        self.followed: FollowedNorm | None = None
        self._norms: list[tuple[Tensor, Tensor]] = []  # of the parts so far
        self._counted = 0.0  # by how many more examples of the parts so far are within the norm than half of them

    @property
    def grad_samples(self) -> list[Tensor]:
        """Per-example gradients, of which there are none: for each parameter those of no example."""
        return [parameter.new_empty(0, *parameter.shape) for parameter in self.params]

    @property
    def accumulated_iterations(self) -> int:
        """How many batches are behind one step: one, because clipped sums are taken batch by batch."""
        return 1

    def gather(self) -> None:
        """Add the clipped sum of a part of the batch to what the step has gathered so far; other parts follow."""
        self._gather()
        self._norms.append((self.clipping.norms, self.clipping.block_norms))

    def clip_and_accumulate(self) -> None:
        """Add the clipped sum of the batch, or of the last part of it, to what the step has gathered so far."""
        self.last_sums = {}
        totals = self._gather()
        if self._norms:
            parts = [*self._norms, (last := self.clipping.norms, self.clipping.block_norms)]
            self.clipping.norms, self.clipping.block_norms = (
                torch.cat([norms.to(last) for norms in kind], -1) for kind in zip(*parts, strict=True)
            )
            self._norms = []
        self.last_sums = totals
        if self.on_clipped is not None:
            self.on_clipped()

    def _gather(self) -> dict[nn.Parameter, Tensor]:
        examples = self.clipping.examples or 0
        sums = self.clipping.clipped_sum()
        self._counted += float((self.clipping.within.double() - 0.5).sum())
        for listener in self.on_norms:
            listener(self.clipping)
        changed = {id(parameter) for parameter in self.params} ^ {id(parameter) for parameter in sums}
        if changed:
            raise ModelError(
                f"{len(changed)} trainable parameters are no longer both in the optimizer and in the module; detach "
                "the clipping, and make both anew."
            )
        if self.on_part is not None:
            self.on_part(sums, examples)
        return {parameter: add_to_sum(parameter, sums[parameter]) for parameter in self.params}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; always to None, because a parameter's own gradient must stay None (see `Clipping`).

        So are those of single examples: what backward passes before have left is none of the step to come.
        """
        self.clipping.forget()
        self._norms, self._counted = [], 0.0
        super().zero_grad(set_to_none=True)

    def add_noise(self) -> None:
        """Add noise to the sums; if the clipping norm adapts, release the count that moves it, too."""
        if self.followed is not None:
            self._release_count(self.followed)
        self._add_noise()
        if self.followed is not None:
            # Not before: the noise of this step is in units of the norm that its examples were clipped to.
            self.clipping.max_grad_norm = self.max_grad_norm = self.followed.norm

    def _release_count(self, followed: FollowedNorm) -> None:
        exact, self._counted = self._counted, 0.0
        followed.release(exact, standard_normal(self.generator))

    def _add_noise(self) -> None:
        if not isinstance(self.generator, SecureGenerator):
            super().add_noise()
            return
        noise_multiplier: float = self.noise_multiplier
        self.noise_multiplier = 0.0
        try:
            super().add_noise()  # of which there is none, but for Opacus' own notes
        finally:
            self.noise_multiplier = noise_multiplier
        if self._draws_noise:
            deviation = noise_multiplier * self.max_grad_norm
            for parameter in self.params:
                parameter.grad = self.generator.noisy(parameter.grad, deviation)

    @property
    def _draws_noise(self) -> bool:
        return True

    def release(self) -> Optimizer:
        """The optimizer inside, with nothing left on its parameters of what Opacus has put there."""
        for group in self.param_groups:
            for parameter in group["params"]:
                clean_parameter(parameter)
        inner: Optimizer = self.original_optimizer
        return inner


class _DistributedClippedOptimizer(ClippedOptimizer, DistributedDPOptimizer):  # type: ignore[misc]
    """In several processes."""

    def add_noise(self) -> None:
        """Add noise to the sums in one of the processes, as Opacus does."""
        # A copy: where Opacus adds no noise, it goes on to work with the sums in place.
        self.last_sums = {parameter: total.clone() for parameter, total in self.last_sums.items()}
        super().add_noise()

    def _release_count(self, followed: FollowedNorm) -> None:
        # Halves of whole numbers, which add up without rounding.
        exact = torch.tensor([self._counted], dtype=torch.float64, device=self.params[0].device)
        self._counted = 0.0
        torch.distributed.all_reduce(exact)
        if self._draws_noise:
            followed.release(float(exact), standard_normal(self.generator))
        # The norm too: processes on other machines may compute it to another last bit.
        agreed = torch.tensor([followed.count, followed.norm], dtype=torch.float64, device=exact.device)
        torch.distributed.broadcast(agreed, 0)
        followed.count, followed.norm = agreed.tolist()

    @property
    def _draws_noise(self) -> bool:
        return bool(self.rank == 0)


def _refuse_other_parameters(optimizer: Optimizer, module: nn.Module) -> None:
    wanted = {id(value): name for name, value in module.named_parameters() if value.requires_grad}
    held = [value for group in optimizer.param_groups for value in group["params"] if value.requires_grad]
    missing = [name for key, name in wanted.items() if key not in {id(value) for value in held}]
    if missing:
        raise ModelError(
            f"The optimizer does not have {', '.join(map(repr, missing))}: every example is clipped over all "
            "trainable parameters. Give it all of them, or freeze the others with requires_grad_(False)."
        )
    others = [tuple(value.shape) for value in held if id(value) not in wanted]
    if others:
        raise ModelError(
            f"The optimizer has {len(others)} trainable parameters that are not the module's, of the shapes "
            f"{', '.join(map(str, others))}: they would be trained without privacy. Make them part of the module."
        )
