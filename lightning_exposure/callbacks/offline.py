"""Weights & Biases without a way to log in: a training that costs money must not stop at a login prompt."""

from __future__ import annotations

import os

from lightning.pytorch import Trainer

from lightning_exposure.callbacks.trees import loggers_named, say


def fall_back_to_offline(trainer: Trainer) -> None:
    """If a W&B logger has no way to log in, log to files instead, and say so.

    Only before the run has begun, and never against an explicit mode.
    """
    loggers = loggers_named(trainer, "WandbLogger")
    if not loggers or "WANDB_MODE" in os.environ or all(getattr(logger, "_offline", False) for logger in loggers):
        return
    import wandb

    if wandb.run is None and wandb.Api is not None and not _can_log_in():
        os.environ["WANDB_MODE"] = "offline"
        say(
            trainer,
            "W&B has no API key here: logging to local files instead (WANDB_MODE=offline). Upload them later with "
            "`wandb sync`, or run `wandb login` first.",
        )


def _can_log_in() -> bool:
    """Whether W&B knows an API key, from the environment or from an earlier login."""
    import wandb

    return bool(os.environ.get("WANDB_API_KEY") or wandb.setup().settings.api_key or wandb.api.api_key)
