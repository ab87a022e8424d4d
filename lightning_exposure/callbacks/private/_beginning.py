"""The first moment of a private fit: how much noise it takes, what it says of itself, and the steps it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._lightning import steps_made
from lightning_exposure.callbacks.private._announcing import announce, announce_clipping
from lightning_exposure.callbacks.private._fit import PrivateFit
from lightning_exposure.callbacks.private._metrics import log_settings
from lightning_exposure.callbacks.private.manual.choosing import private_part
from lightning_exposure.callbacks.private.watching.guarding import Guard
from lightning_exposure.privacy.steps.poisson import PoissonLoader
from lightning_exposure.privacy.steps.proof import Promise

if TYPE_CHECKING:
    from lightning_exposure.callbacks.private.differential_privacy import DifferentialPrivacy


class Plan(NamedTuple):
    """What a fit will do with its budget.

    Attributes:
        noise: The noise multiplier.
        within: How many steps are within the budget; infinitely many if all that are planned are.
        outlook: What the steps to come will spend, for people; None if nothing is to be said.
    """

    noise: float
    within: float
    outlook: str | None


def planned(privacy: DifferentialPrivacy, trainer: Trainer, sample_rate: float, *, verbose: bool) -> Plan:
    """How much noise the steps of a fit get, and how many of them there may be.

    Args:
        privacy: Whose budget it is; its history is known by now.
        trainer: Who trains.
        sample_rate: With which probability a record, or a user, is in a batch.
        verbose: Whether something is to be said.

    Raises:
        FitError: The plan does not allow for the privacy.
    """
    budget, history = privacy.budget, privacy.history
    steps = trainer.estimated_stepping_batches - steps_made(trainer)
    # All processes must agree to the last bit, and stop at the same step.
    agreed = trainer.strategy.broadcast
    noise = agreed(budget.noise(history, sample_rate, steps, privacy.noise_multiplier_))
    within = agreed(budget.limit(history, sample_rate, noise, steps))
    return Plan(noise, within, budget.outlook(history, sample_rate, noise, steps, within) if verbose else None)


def begin_fit(
    privacy: DifferentialPrivacy,
    trainer: Trainer,
    module: LightningModule,
    loader: PoissonLoader,
    *,
    outlook: str | None,
    count: Callable[[], None],
    guard: Guard | None,
    seed: Sequence[int],
) -> PrivateFit:
    """Say how much privacy there will be, and make the steps private.

    Args:
        privacy: Whose settings they are; its noise is known by now.
        trainer: Who trains.
        module: What is trained.
        loader: Where its batches come from.
        outlook: What the steps to come will spend; None: nothing is said.
        count: Called once for every private step, before the weights move.
        guard: Looks at what happens between the steps.
        seed: Of the proof's own randomness.
    """
    noise, force = privacy.noise_multiplier_, privacy.norm_in_force
    assert noise is not None
    clipping = force.clipping(private_part(module, privacy.private), privacy.loss_reduction)
    tracking = force.tracking(noise, loader.batch_size * trainer.world_size)
    if outlook is not None:
        announce(trainer, loader, noise, force.norm, outlook, privacy.post_processing, norms=privacy.log_norms)
        in_parts = privacy.max_physical_batch_size is not None
        announce_clipping(trainer, clipping, tracking, secure=privacy.secure, in_parts=in_parts)
    settings = {"unit": privacy.unit, "clipping": force.name, "secure": privacy.secure}
    log_settings(trainer, {"accountant": privacy.budget.accountant, **settings})
    promise = Promise(
        noise,
        clipping.max_grad_norm,
        sample_rate=loader.sample_rate,
        records=loader.own_units,
        users=privacy.protection.of_process(loader),
        history=lambda: privacy.history,
        seed=seed,
        tracking=tracking,
        secure=privacy.secure,
    )
    fit = PrivateFit(
        trainer,
        module,
        loader,
        clipping=clipping,
        private=privacy.private,
        count=count,
        verify=privacy.verify_steps,
        guard=guard,
        most=privacy.max_physical_batch_size,
        verbose=outlook is not None,
        promise=promise,
    )
    force.follow(fit.steps.optimizer.followed)
    if privacy.log_norms:
        fit.steps.optimizer.on_norms.append(privacy.norms.add)
    return fit
