"""Which part of a module is trained privately, and which of its optimizers does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from lightning_exposure._checks import refusal
from lightning_exposure.callbacks.private._refusals import is_overridden, refuse_optimizers
from lightning_exposure.errors import FitError


def check_private(private: object) -> str | None:
    """The name of a part of a module; None: there is none.

    Raises:
        ArgumentError: It is no name.
    """
    if private is None or (isinstance(private, str) and private):
        return private
    raise refusal(
        "private",
        private,
        "the name of the part of the module that sees the data and is trained privately",
        'For example private="discriminator".',
    )


def private_part(module: nn.Module, private: str | None) -> nn.Module:
    """What is trained privately: the module, or a part of it.

    Raises:
        FitError: There is no such part.
    """
    if private is None:
        return module
    try:
        return module.get_submodule(private)
    except AttributeError:
        parts = ", ".join(repr(name) for name, _ in module.named_children()) or "none"
        raise FitError(
            f"private is {private!r}; expected the name of a part of {type(module).__name__} ({parts})."
        ) from None


def private_place(optimizers: Sequence[Any], module: nn.Module, private: str | None) -> int:
    """Which of the optimizers is the private one: the one that has the trainable weights of the private part.

    Raises:
        FitError: There is not exactly one, or it has others too.
    """
    if private is None:
        refuse_optimizers(list(optimizers))
        return 0
    names = {id(value): name for name, value in module.named_parameters() if value.requires_grad}
    wanted = {id(value) for value in private_part(module, private).parameters() if value.requires_grad}
    held = [{id(value) for group in each.param_groups for value in group["params"]} & set(names) for each in optimizers]
    found = [place for place, mine in enumerate(held) if mine & wanted]
    if len(found) != 1:
        raise FitError(
            f"{len(found)} of the {len(held)} optimizers of configure_optimizers have weights of {private!r}; expected "
            "one. What another one did to them would have neither clipping nor noise: give every optimizer weights "
            "of its own."
        )
    (place,) = found
    others = sorted(names[key] for key in held[place] - wanted)
    if others:
        raise FitError(
            f"The optimizer of {private!r} has other weights too, {', '.join(map(repr, others[:5]))}; expected those "
            f"of {private!r} alone. Give these an optimizer of their own; or name a part that has all of them, if they "
            "see the data."
        )
    refuse_optimizers([optimizers[place]])
    return place


def refuse_schedules(trainer: Any, module: Any, private: str | None, post_processing: Sequence[str]) -> None:
    """Refuse learning rate schedules that a module steps itself, unless it does so in a hook that the user vouches for.

    Raises:
        FitError: There are some.
    """
    hooks = [name for name in post_processing if is_overridden(name, module, "LightningModule")]
    if private is not None and trainer.lr_scheduler_configs and not hooks:
        raise FitError(
            f"configure_optimizers gives learning rate schedules, and {type(module).__name__} steps them itself: "
            "nobody sees whether by a plan or by what the data say. Leave them out; or step them in a hook, and vouch "
            'for it: DifferentialPrivacy(post_processing=["on_train_epoch_end"]).'
        )
