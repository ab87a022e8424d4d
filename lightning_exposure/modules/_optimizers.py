"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, StepLR

from lightning_exposure.errors import ArgumentError

OPTIMIZERS: dict[str, type[optim.Optimizer]] = {
    "rmsprop": optim.RMSprop,
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
}
"""Every optimizer that can be asked for; those of the paper's comparison are among them."""

SCHEDULERS = ("cosine", "step", "linear-warmup")
"""Every schedule that can be asked for, besides none."""

_WITH_MOMENTUM = ("rmsprop", "sgd")


def make_optimizer(
    name: str, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float
) -> optim.Optimizer:
    """An optimizer by its name.

    >>> make_optimizer("sgd", [nn.Parameter()], lr=0.1, weight_decay=0.0, momentum=0.9).defaults["momentum"]
    0.9
    """
    more = {"momentum": momentum} if name in _WITH_MOMENTUM else {}
    make: Callable[..., optim.Optimizer] = OPTIMIZERS[name]
    return make(parameters, lr=lr, weight_decay=weight_decay, **more)


def make_scheduler(
    name: str, optimizer: optim.Optimizer, *, warmup_steps: int, step_size: int, gamma: float, total_steps: int
) -> dict[str, Any]:
    """A schedule by its name, as Lightning wants it from `configure_optimizers`.

    Args:
        name: "cosine": down to 0 over the whole training; "step": times `gamma` every `step_size` epochs;
            "linear-warmup": up over `warmup_steps` steps, then constant.
        optimizer: Whose learning rate it is.
        warmup_steps: For "linear-warmup".
        step_size: For "step".
        gamma: For "step".
        total_steps: For "cosine": how many steps the training has.
    """
    scheduler: LRScheduler
    if name == "step":
        scheduler = StepLR(optimizer, step_size, gamma)
    elif name == "cosine":
        scheduler = CosineAnnealingLR(optimizer, max(1, total_steps))
    else:
        scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup_steps)))
    return {"scheduler": scheduler, "interval": "epoch" if name == "step" else "step"}


def check_choice(value: object, argument: str, choices: Iterable[str | None]) -> None:
    """Refuse a name that is not among the choices.

    >>> check_choice("adan", "optimizer", ["adam"])
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: optimizer='adan': expected one of 'adam'.
    """
    listed = list(choices)
    if value not in listed:
        raise ArgumentError(f"{argument}={value!r}: expected one of {', '.join(map(repr, listed))}.")


def check_number(value: object, argument: str, *, low: float, high: float = math.inf, open_low: bool = False) -> None:
    """Refuse a number outside of an interval that does not contain its upper end.

    >>> check_number(1.5, "dropout", low=0, high=1)
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: dropout=1.5: expected a number of at least 0 and below 1.
    """
    fine = isinstance(value, int | float) and not isinstance(value, bool) and low <= value < high
    if not fine or (open_low and value == low):
        above = f"above {low}" if open_low else f"of at least {low}"
        below = "" if high == math.inf else f" and below {high}"
        raise ArgumentError(f"{argument}={value!r}: expected a number {above}{below}.")
