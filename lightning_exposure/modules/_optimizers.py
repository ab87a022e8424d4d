"""Optimizers and learning-rate schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, StepLR

from lightning_exposure._checks import choice, number

OptimizerName = Literal["rmsprop", "adam", "adamw", "sgd", "adagrad", "adadelta", "nadam", "radam"]
"""Every optimizer that can be asked for; those of the paper's comparison are among them."""

SchedulerName = Literal["cosine", "step", "linear-warmup"]
"""Every schedule that can be asked for, besides none."""

OPTIMIZERS: dict[OptimizerName, type[optim.Optimizer]] = {
    "rmsprop": optim.RMSprop,
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
}

_WITH_MOMENTUM = ("rmsprop", "sgd")


def make_optimizer(
    name: OptimizerName, parameters: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float
) -> optim.Optimizer:
    """An optimizer by its name.

    >>> make_optimizer("sgd", [nn.Parameter()], lr=0.1, weight_decay=0.0, momentum=0.9).defaults["momentum"]
    0.9
    """
    more = {"momentum": momentum} if name in _WITH_MOMENTUM else {}
    make: Callable[..., optim.Optimizer] = OPTIMIZERS[name]
    return make(parameters, lr=lr, weight_decay=weight_decay, **more)


def make_scheduler(
    name: SchedulerName,
    optimizer: optim.Optimizer,
    *,
    warmup_steps: int,
    step_size: int,
    gamma: float,
    total_steps: int,
) -> dict[str, Any]:
    """A schedule by its name, as Lightning wants it from `configure_optimizers`.

    Args:
        name: "cosine": down to 0 over the whole training run; "step": times `gamma` every `step_size` epochs;
            "linear-warmup": up over `warmup_steps` steps, then constant.
        optimizer: Whose learning rate it is.
        warmup_steps: For "linear-warmup".
        step_size: For "step".
        gamma: For "step".
        total_steps: For "cosine": how many steps the training run has.
    """
    scheduler: LRScheduler
    if name == "step":
        scheduler = StepLR(optimizer, step_size, gamma)
    elif name == "cosine":
        scheduler = CosineAnnealingLR(optimizer, max(1, total_steps))
    else:
        scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, warmup_steps)))
    return {"scheduler": scheduler, "interval": "epoch" if name == "step" else "step"}


def check_training(settings: Mapping[str, Any]) -> None:
    """Refuse settings that no model can be trained with.

    Args:
        settings: The arguments of a module by name: `optimizer`, `scheduler`, `dropout`, `lr`, `weight_decay`,
            `momentum` and `gamma` are looked at.

    Raises:
        ArgumentError: Names the argument.
    """
    choice("optimizer", settings["optimizer"], OPTIMIZERS)
    choice("scheduler", settings["scheduler"], (None, *get_args(SchedulerName)))
    for name in ("dropout", "momentum"):
        number(name, settings[name], at_least=0, below=1)
    for name in ("lr", "gamma"):
        number(name, settings[name], above=0)
    number("weight_decay", settings["weight_decay"], at_least=0)
