"""What a private training run logs: its settings, what it has spent, and how long the gradients of examples are.

Delta, noise, clipping norm and sampling rate are settings, or follow from what was spent; no data are behind them. The
share of clipped examples and the median norm are of the data, as the training loss is, and no noise is added to them:
epsilon does not cover them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lightning_exposure.privacy.clipping.clipping import Clipping

COVERED: Final = (
    "privacy/epsilon",
    "privacy/delta",
    "privacy/noise_multiplier",
    "privacy/clipping_norm",
    "privacy/sample_rate",
)
"""What may be shown to anybody, and followed by anything: no data are behind it, or noise is on them."""

NOT_COVERED: Final = ("privacy/clipped_share", "privacy/median_norm")
"""What is computed from the training data, without noise."""

STATEMENT: Final = (
    f"{' and '.join(NOT_COVERED)} are logged without noise: as for the training loss, epsilon does not cover them. "
    "Leave them out with log_norms=False."
)


class NormsOfEpoch(NamedTuple):
    """How long the gradients of the examples of an epoch were, before clipping.

    Attributes:
        clipped_share: The share of examples whose gradients were clipped.
        median_norm: Half of them were longer than this.
    """

    clipped_share: float
    median_norm: float


def norms_of(norms: Tensor, clipped: Tensor) -> NormsOfEpoch | None:
    """What is said of some examples; None if there are none.

    Args:
        norms: Of their gradients.
        clipped: Whether each was clipped.

    Example:
        >>> norms_of(torch.tensor([1.0, 2.0, 6.0, 4.0]), torch.tensor([False, False, True, True]))
        NormsOfEpoch(clipped_share=0.5, median_norm=3.0)
    """
    if not len(norms):
        return None
    return NormsOfEpoch(float(clipped.double().mean()), float(np.median(norms.double().numpy())))


class NormLog:
    """Gathers the norms of all examples of an epoch, in all processes.

    Attributes:
        epochs: What was found in each epoch, with the number of private steps after it. It is not saved in
            checkpoints, which are to be covered by epsilon.
    """

    def __init__(self) -> None:
        self.epochs: list[tuple[int, NormsOfEpoch]] = []
        self._norms: list[Tensor] = []
        self._clipped: list[Tensor] = []

    def add(self, clipping: Clipping) -> None:
        """Take in what was clipped last."""
        self._norms.append(clipping.norms.detach().float().cpu())
        self._clipped.append((clipping.within < 1).cpu())

    def end_epoch(self, trainer: Trainer, steps: int) -> Mapping[str, float]:
        """What is logged of the epoch; to be called in all processes."""
        mine = [torch.cat(parts).float() if parts else torch.zeros(0) for parts in (self._norms, self._clipped)]
        self._norms, self._clipped = [], []
        norms, clipped = _gathered(trainer.strategy, torch.stack(mine))
        found = norms_of(norms, clipped)
        if found is None:
            return {}
        self.epochs.append((steps, found))
        return dict(zip(NOT_COVERED, found, strict=True))


def log_all(module: LightningModule, values: Mapping[str, float], **options: Any) -> None:
    """Log values that all processes agree on."""
    for name, value in values.items():
        module.log(name, value, sync_dist=True, **options)


def log_settings(trainer: Trainer, settings: Mapping[str, Any]) -> None:
    """Let loggers have what is no number, such as the accountant's name, among the hyperparameters of the run."""
    for logger in trainer.loggers:
        logger.log_hyperparams({"privacy": dict(settings)})


def _gathered(strategy: Any, columns: Tensor) -> Tensor:
    """The columns of all processes, one after the other; the processes need not have equally many."""
    sizes = strategy.all_gather(torch.tensor([columns.shape[1]], device=strategy.root_device)).flatten().tolist()
    if not max(sizes):
        return columns
    padded = torch.zeros(len(columns), max(sizes))
    padded[:, : columns.shape[1]] = columns
    together = strategy.all_gather(padded.to(strategy.root_device)).cpu().reshape(len(sizes), *padded.shape)
    return torch.cat([part[:, :size] for part, size in zip(together, sizes, strict=True)], 1)
