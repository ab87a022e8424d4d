"""What a Trainer may not do while it trains privately, each with the reason and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._checks import refusal
from lightning_exposure._lightning import takes_iterator
from lightning_exposure.data.packages import package_of
from lightning_exposure.errors import FitError

_PRECISIONS = ("32-true", "64-true", "bf16-mixed")
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


def refuse_trainer(trainer: Trainer, module: LightningModule, callback: object, kind: type) -> None:
    """Refuse a training run that could not be private, before anything is trained.

    Args:
        trainer: Who trains.
        module: What is trained.
        callback: The callback that makes it private.
        kind: Of which there may be no other one.

    Raises:
        FitError: Names everything that stands in the way.
    """
    _refuse([*_settings(trainer), *_parts(trainer, module, callback, kind)])


def refuse_optimizers(optimizers: list[Any]) -> None:
    """Refuse optimizers that cannot be made private.

    Raises:
        FitError: There is not exactly one optimizer, or it needs several passes over a batch.
    """
    if len(optimizers) != 1:
        _refuse([f"configure_optimizers gives {len(optimizers)} optimizers; expected one, with all parameters."])
    kind = type(optimizers[0]).__name__
    if kind == "LBFGS":
        _refuse([f"{kind} looks at a batch several times in a step, and would each time spend privacy; use another."])


def refuse_seeded(seed: int | None, *, secure: bool) -> None:
    """Refuse a seed beside randomness that has none.

    Raises:
        ArgumentError: Both were asked for.
    """
    if secure and seed is not None:
        raise refusal(
            "seed",
            seed,
            "None with secure=True",
            "What comes from the operating system cannot be repeated: leave one of them out.",
        )


def is_overridden(method: str, instance: object, kind: str) -> bool:
    """Whether an object has a hook of its own, and not that of its Lightning base class."""
    package: Any = package_of(instance, kind)
    base = getattr(getattr(package, kind, None), method, None)
    own = getattr(instance, method, None)
    return own is not None and getattr(own, "__code__", None) is not getattr(base, "__code__", None)


def _refuse(reasons: list[str]) -> None:
    if reasons:
        raise FitError(
            "\n".join(["This training run cannot be private as it is:", *(f"- {reason}" for reason in reasons)])
        )


def _settings(trainer: Any) -> Iterator[str]:
    if trainer.gradient_clip_val:
        yield (
            f"Trainer(gradient_clip_val={trainer.gradient_clip_val}): clips what is a noisy sum already, if it does "
            "anything; leave it out. max_grad_norm clips each example."
        )
    if trainer.accumulate_grad_batches != 1:
        yield accumulation(trainer.accumulate_grad_batches)
    if trainer.overfit_batches:
        yield (
            f"Trainer(overfit_batches={trainer.overfit_batches}): takes the same batches again and again, while "
            "privacy rests on random ones; leave it out, or take a part of the dataset with torch.utils.data.Subset."
        )
    strategy = refused_strategy(trainer.strategy)
    if strategy:
        yield strategy
    elif trainer.precision not in _PRECISIONS:
        yield (
            f"Trainer(precision={trainer.precision!r}): scales the loss, or rounds away the noise; use one of "
            f"{', '.join(map(repr, _PRECISIONS))}."
        )


def refused_strategy(strategy: object) -> str | None:
    """Why a strategy cannot be used; None if it can."""
    kinds = [base.__name__ for base in type(strategy).__mro__]
    # DeepSpeed's is a kind of DDP for Lightning.
    if "DeepSpeedStrategy" not in kinds and any(kind in kinds for kind in _STRATEGIES):
        return None
    return (
        f"Trainer(strategy=...) is {kinds[0]}, which steps in a way of its own or with parts of the weights; use one "
        "device, or strategy='ddp'."
    )


def _parts(trainer: Any, module: LightningModule, callback: Any, kind: type) -> Iterator[str]:
    yield from _steps_of_its_own(trainer, module, getattr(callback, "private", None))
    if not module.automatic_optimization and getattr(callback, "max_physical_batch_size", None) is not None:
        yield (
            f"max_physical_batch_size is {callback.max_physical_batch_size}: with automatic_optimization=False the "
            "module makes its steps itself, and no parts of a batch can be put before them; leave it out."
        )
    if is_overridden("configure_gradient_clipping", module, "LightningModule"):
        yield (
            f"{type(module).__name__}.configure_gradient_clipping would never see a gradient; remove it. max_grad_norm "
            "clips each example."
        )
    if any(other is not callback and isinstance(other, kind) for other in trainer.callbacks):
        yield f"Trainer(callbacks=...) has two {kind.__name__}; expected one."
    for finder in ("LearningRateFinder", "BatchSizeFinder"):
        if any(type(other).__name__ == finder for other in trainer.callbacks):
            yield f"{finder}: its trials are not private; find the value once, on other data, and leave it out."
    if any(type(other).__name__ == "GradientAccumulationScheduler" for other in trainer.callbacks):
        yield (
            "GradientAccumulationScheduler: a step must be that of one batch; leave it out. For batches that memory "
            "does not hold, use DifferentialPrivacy(max_physical_batch_size=...)."
        )
    if takes_iterator(module.training_step):
        yield (
            f"{type(module).__name__}.training_step(self, dataloader_iter) fetches its batches by itself, so that "
            "nobody knows which records they are; use training_step(self, batch, batch_idx)."
        )


def _steps_of_its_own(trainer: Any, module: LightningModule, private: str | None) -> Iterator[str]:
    kind = type(module).__name__
    if private is None:
        if not module.automatic_optimization:
            yield (
                f"{kind}.automatic_optimization is False: it makes its steps itself, and which of them see the data is "
                "for you to say. Name the part that does, whose optimizer is then the private one: "
                'DifferentialPrivacy(private="discriminator"); or use automatic optimization.'
            )
        return
    if module.automatic_optimization:
        yield (
            f"private is {private!r}, and {kind}.automatic_optimization is True: then there is one optimizer, and it "
            "is private; leave it out, or set automatic_optimization to False."
        )
    if trainer.world_size > 1:
        yield (
            f"private is {private!r}, with {trainer.world_size} processes: the steps of the other optimizers would not "
            "be brought together; use one device."
        )


def accumulation(batches: int) -> str:
    """Why gradients cannot be accumulated."""
    return (
        f"Trainer(accumulate_grad_batches={batches}): a step must be that of one batch, of which the accountant knows; "
        "leave it out. For batches that memory does not hold, ask for the large batch in the loader, and use "
        "DifferentialPrivacy(max_physical_batch_size=...)."
    )


def overspent(max_epsilon: float | None, epsilon: float) -> str:
    """Why a training run that goes on after its budget is spent cannot."""
    return (
        f"max_epsilon is {max_epsilon}, and spent ({epsilon:.4g}); expected the Trainer to stop. Leave out min_epochs "
        "and min_steps."
    )


def refuse_exchanged(optimizers: list[Any], expected: list[Any]) -> None:
    """Refuse optimizers of a Trainer that are not the private one, and those beside it.

    Raises:
        FitError: They are others.
    """
    if len(optimizers) != len(expected) or any(a is not b for a, b in zip(optimizers, expected, strict=True)):
        raise FitError(
            "The Trainer's optimizers are not the private one any more, and those beside it. Something has set "
            "trainer.optimizers; the training was stopped, because it would not have been private."
        )
