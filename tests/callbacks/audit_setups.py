"""A training run with canaries of which coins left out some, and somebody who promises that it is private."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import CanaryDataModule, CanarySet, SecretFormat
from tests.callbacks.setups import CHARS, TEXT, Model, trainer

PINS = SecretFormat("my pin is ######", name="pin")
KEYS = SecretFormat("my key is ??-####", name="key")
COINS = CanarySet.draw(PINS, repetitions=[1] * 120, seed=0, holdout=0.5)
SOME = CanarySet.draw(PINS, repetitions=[1] * 24, seed=0, holdout=0.5)


def encode(text: str) -> tuple[Tensor, ...]:
    return (torch.tensor(CHARS.encode((text + TEXT)[:20])),)


def data(canaries: CanarySet) -> CanaryDataModule:
    """Some text, and the canaries that are in: one example for each repetition."""
    windows = torch.tensor([CHARS.encode((TEXT * 2)[start : start + 20]) for start in range(20)])
    return CanaryDataModule(DataLoader(TensorDataset(windows), batch_size=16, shuffle=True), canaries, encode=encode)


def train(
    folder: Path, *extra: Any, canaries: CanarySet = COINS, model: Model | None = None, **options: Any
) -> L.Trainer:
    """Twenty epochs, enough to learn most of the canaries by heart."""
    torch.manual_seed(0)
    run = trainer(folder, *extra, **({"max_epochs": 20} | options))
    run.fit(model or Model(64, lr=2e-2), data(canaries))
    return run


class DifferentialPrivacy(L.Callback):
    """Promises an epsilon and does nothing for it."""

    def __init__(self, epsilon: float, delta: float = 1e-5) -> None:
        self.epsilon = epsilon
        self.delta = delta
