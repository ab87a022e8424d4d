"""What a private training run says of itself before it begins: how much privacy there is, and what it covers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from lightning.pytorch import Trainer

from lightning_exposure._lightning import steps_made
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks.private._metrics import STATEMENT
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.adaptive import Tracking
from lightning_exposure.privacy.steps.origin import Origin
from lightning_exposure.privacy.steps.poisson import PoissonLoader


def announce(
    trainer: Trainer,
    loader: PoissonLoader,
    noise: float,
    norm: float,
    outlook: str,
    exempt: Sequence[str],
    *,
    norms: bool,
) -> None:
    """Say what noise there is, and what epsilon it will come to.

    Args:
        trainer: Who trains.
        loader: What it reads.
        noise: The noise multiplier.
        norm: The clipping norm.
        outlook: What the steps to come will spend.
        exempt: What the user vouches for.
        norms: Whether something is logged of the norms of examples.
    """
    rate, users = loader.sample_rate, loader.users
    say(
        trainer,
        f"Private training: noise multiplier {noise:.4g}, clipping norm {norm:g}, sample rate {rate:.4g} (about "
        f"{loader.units * rate:.4g} of {loader.units} {loader.unit}s a step"
        + ("" if users is None else f", each with at most {users.most} records")
        + ").",
    )
    say(trainer, outlook)
    if exempt:
        say(
            trainer,
            f"This epsilon takes your word for it that no training data are behind what {', '.join(exempt)} changes "
            "(post_processing).",
        )
    if norms:
        say(trainer, STATEMENT)
    per_record = "Epsilon is per record; what occurs k times in the data is covered as a group only, by k times it."
    per_user = (
        f"Epsilon is per user, with all records that are his, of {loader.records}; what k users have in common is "
        "covered as a group only, by k times it."
    )
    say(trainer, per_record if users is None else per_user)


def announce_clipping(
    trainer: Trainer, clipping: Clipping, tracking: Tracking | None, *, secure: bool, in_parts: bool = False
) -> None:
    """Say how examples are clipped, if not as a whole to one norm, and where the noise comes from.

    Args:
        trainer: Who trains.
        clipping: Clips them.
        tracking: How the norm adapts; None: it does not.
        secure: Whether the noise is the operating system's.
        in_parts: Whether a batch may be trained on in parts.
    """
    if clipping.per_layer:
        say(trainer, "Examples are clipped layer by layer, each to the clipping norm over the root of their number.")
    if tracking is not None:
        say(
            trainer,
            f"The clipping norm follows the {tracking.settings.quantile:g} quantile of the examples' norms. The noise "
            f"on the count of examples within it has a standard deviation of {tracking.count_noise:.4g}, and the "
            f"gradient a noise multiplier of {tracking.gradient_noise:.4g}: together they are one step with the noise "
            "multiplier that the accountant is told.",
        )
    if in_parts and clipping.loss_reduction == "sum":
        say(
            trainer,
            "The loss that the training step logs is added up over the parts of a batch. Its other values are means, "
            "weighed by examples: log another sum divided by the number of examples.",
        )
    if secure:
        say(trainer, "Batches and noise come from the operating system's cryptographic generator.")


def announce_origin(trainer: Trainer, origin: Origin, *, verbose: bool) -> None:
    """Say what epsilon covers of the weights that a fit begins with; a warning, if they were changed meanwhile.

    Args:
        trainer: Who trains.
        origin: Where the weights come from.
        verbose: Whether to say anything but the warning.
    """
    before, gaps = origin.record.steps, origin.record.gaps
    if before and not origin.known and trainer.is_global_zero:
        warnings.warn(
            f"The weights are not those that the {before} private steps before have led to: something else changed "
            "them, such as a fit without DifferentialPrivacy, or other weights were loaded. Epsilon covers those "
            f"{before} private steps and the ones to come. It does not cover the data behind the change.",
            stacklevel=2,
        )
    if not verbose:
        return
    if before and origin.known:
        say(
            trainer,
            f"Epsilon goes on: it includes the {before} private steps that these weights come from, on whatever data.",
        )
    if gaps:
        say(trainer, f"The weights were changed without privacy after {_numbers(gaps)} private steps; not covered.")
    unknown = steps_made(trainer) - before
    if unknown > 0:
        say(trainer, f"{unknown} steps before these were made without privacy; epsilon does not cover them.")
    elif not before:
        say(
            trainer,
            "Epsilon covers the steps of this fit. Where the weights come from that it begins with is not known: if "
            "they were trained before, the data of that training are not covered.",
        )


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
