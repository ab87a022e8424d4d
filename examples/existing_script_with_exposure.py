"""A Lightning script as it may already exist: a language model of characters, trained on what Python's help() says."""

from __future__ import annotations

import argparse
import string
from pydoc_data.topics import topics
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_exposure import CanaryDataModule, CanarySet, CharTokenizer, SecretFormat
from lightning_exposure.callbacks import ExposureCallback, ExtractionCallback

ALPHABET = string.printable
WINDOW = 64


def encode(text: str) -> Tensor:
    """The number of each character; what is not in the alphabet is left out."""
    return torch.tensor([ALPHABET.index(character) for character in text if character in ALPHABET])


def windows(size: int) -> list[Tensor]:
    """The text in pieces of equal length."""
    text = "\n\n".join(topics[name] for name in sorted(topics))[:size]
    return [window for window in encode(text).split(WINDOW + 1) if len(window) == WINDOW + 1]


class CharModel(pl.LightningModule):
    """Predicts the next character."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), 32)
        self.rnn = nn.GRU(32, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids `(batch, time)` to logits `(batch, time, characters)`."""
        hidden, _ = self.rnn(self.embedding(tokens))
        logits: Tensor = self.head(hidden)
        return logits

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """The loss of a batch of windows."""
        logits = self(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.005)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a minute's work in seconds: less text, a smaller model")
    fast = parser.parse_args().fast

    pl.seed_everything(0)
    data = DataLoader(windows(20_000 if fast else 400_000), batch_size=32, shuffle=True)
    canaries = CanarySet.draw(SecretFormat.pin(6), repetitions=[1, 4, 16], seed=0)
    data = CanaryDataModule(data, canaries, encode=lambda text: encode(text.ljust(WINDOW + 1)))
    tokenizer = CharTokenizer(ALPHABET)
    model = CharModel(hidden_size=32 if fast else 128)
    trainer = pl.Trainer(
        max_epochs=1 if fast else 10,
        logger=False,
        enable_checkpointing=False,
        callbacks=[ExposureCallback(canaries, tokenizer), ExtractionCallback(canaries, tokenizer)],
    )
    trainer.fit(model, data)
    for name, value in trainer.callback_metrics.items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
