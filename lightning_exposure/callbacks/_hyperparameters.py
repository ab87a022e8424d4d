"""Canaries among the hyperparameters of a module: these go to every logger and into every checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lightning_exposure._lightning import set_logged_hyperparameters
from lightning_exposure.secrets import Canary, CanarySet, Redaction

_KEYS = ("hyper_parameters", "datamodule_hyper_parameters")
"""Where Lightning puts them in a checkpoint."""


class CanariesInHyperparametersWarning(UserWarning):
    """`save_hyperparameters()` took canaries along."""


def hide_from_loggers(trainer: Trainer, module: LightningModule, canaries: CanarySet) -> None:
    """Mask the canaries in what loggers get of hyperparameters, and warn that they are there.

    Args:
        trainer: Whose data module it is.
        module: What is trained.
        canaries: Whose texts are looked for.
    """
    for owner in (module, getattr(trainer, "datamodule", None)):
        given = getattr(owner, "hparams_initial", None)
        values = dict(given) if isinstance(given, Mapping) else {}
        shown = _masked(values, canaries)
        found = ", ".join(repr(name) for name in values if shown[name] is not values[name])
        if not found:
            continue
        set_logged_hyperparameters(owner, shown)
        if trainer.is_global_zero:
            warnings.warn(
                f"The hyperparameters of {type(owner).__name__} have canaries in them ({found}). Loggers and "
                "checkpoints get them masked, so that load_from_checkpoint has to be given them again; checkpoints "
                f"with weights only get them in full. Leave them out: save_hyperparameters(ignore=[{found}]).",
                CanariesInHyperparametersWarning,
                stacklevel=2,
            )


def hide_from_checkpoint(checkpoint: dict[str, Any], canaries: CanarySet) -> None:
    """Mask the canaries among the hyperparameters in a checkpoint that is about to be saved."""
    for key in _KEYS:
        if isinstance(checkpoint.get(key), Mapping):
            checkpoint[key] = type(checkpoint[key])(_masked(dict(checkpoint[key]), canaries))


def _masked(value: Any, canaries: CanarySet) -> Any:
    """The same value, with what may be shown of each canary in its place; the very same if there is none in it."""
    if isinstance(value, Canary | CanarySet):
        return repr(value)
    if isinstance(value, str):
        outside = Redaction(canaries, shared=True)
        for canary in canaries:
            if canary.text in value:
                value = value.replace(canary.text, outside.text(canary.text, canary.format))
        return value
    if isinstance(value, dict):
        changed = {name: _masked(item, canaries) for name, item in value.items()}
        return changed if any(changed[name] is not value[name] for name in value) else value
    if type(value) in (list, tuple):
        parts = [_masked(item, canaries) for item in value]
        return type(value)(parts) if any(one is not other for one, other in zip(parts, value, strict=True)) else value
    return value
