"""A small training with canaries, the way a user would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.tokenization import CharTokenizer

TEXT = "the quick brown fox jumps over the lazy dog 0123456789-. "
CHARS = CharTokenizer.from_text(TEXT, "my pin is my key is", "abcdefghijklmnopqrstuvwxyz")
PIN = SecretFormat("my pin is ####")
KEY = SecretFormat("my key is ??-##", name="key")
CANARIES = CanarySet.draw(PIN, repetitions=[1, 30], seed=0)
BOTH = CanarySet.draw([PIN, KEY], repetitions=[1, 30], seed=0)


class Model(L.LightningModule):
    """A language model that knows nothing of canaries; dropout on."""

    def __init__(self, width: int = 24, *, lr: float = 1e-2) -> None:
        super().__init__()
        self.lr = lr
        self.embed = nn.Embedding(CHARS.vocab_size, width)
        self.cell = nn.LSTM(width, width, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(width, CHARS.vocab_size)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        features, state = self.cell(self.embed(tokens), state)
        return self.out(self.drop(features)), state

    def _loss(self, batch: list[Tensor]) -> Tensor:
        logits, _ = self(batch[0][:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def loader(canaries: CanarySet = CANARIES, *, shuffle: bool = True, copies: int = 40) -> DataLoader[Any]:
    """Windows of text with the canaries among them."""
    windows = [CHARS.encode((TEXT * 2)[i : i + 20]) for i in range(len(TEXT))] * (copies // 10)
    secrets = [(canary.text + TEXT)[:20] for canary in canaries for _ in range(canary.copies)]
    windows += [CHARS.encode(text) for text in secrets]
    return DataLoader(TensorDataset(torch.tensor(windows)), batch_size=32, shuffle=shuffle)


def trainer(folder: Path, *callbacks: L.Callback, **options: Any) -> L.Trainer:
    """A quiet trainer."""
    defaults: dict[str, Any] = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "log_every_n_steps": 1,
    }
    return L.Trainer(callbacks=list(callbacks), **(defaults | options))
