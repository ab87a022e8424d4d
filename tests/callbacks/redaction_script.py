"""A training with everything that keeps or sends something, in a process of its own; see test_redaction.py.

Usage: python -m tests.callbacks.redaction_script FOLDER FACTS [--reveal]. Leaves what the loggers and checkpoints wrote
in FOLDER, and which secrets there were in FACTS.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
import wandb
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import (
    AuditCallback,
    CanaryDataModule,
    CanarySet,
    CharTokenizer,
    ExposureCallback,
    ExtractionCallback,
    ScanCallback,
    SecretFormat,
)

FORMATS = [
    SecretFormat.ssn(),
    SecretFormat.regex("password: [a-z0-9]{9}(-old)?", name="password"),
    SecretFormat("home of {who} is ######", who=["Alexandra", "Bartholomew", "Christopher"], name="home"),
    SecretFormat("Name: {who}\nCode: ######", who=["Alexandra", "Bartholomew"], name="lines"),
]
CANARIES = CanarySet.draw(FORMATS, repetitions=[1, 4], seed=7, holdout=0.5)
REAL = "my ssn is 536-90-4399. call me: 415 555 2671"
CHARS = CharTokenizer.from_text(
    REAL, "".join(format.masked.replace("•", "0") for format in FORMATS), *CANARIES.texts,
    "abcdefghijklmnopqrstuvwxyz0123456789-\nAlexandraBartholomewChristopher",
)  # fmt: skip


class Model(L.LightningModule):
    """Its hyperparameters hold the canaries: `save_hyperparameters()` takes everything along."""

    def __init__(self, canaries: CanarySet, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(CHARS.vocab_size, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, CHARS.vocab_size)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        features, state = self.cell(self.embed(tokens), state)
        return self.out(features), state

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        logits, _ = self(batch[0][:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Data(L.LightningDataModule):
    """The same of a data module."""

    def __init__(self, planted: list[Any]) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.tensor([encode(REAL)[0].tolist()] * 8)), batch_size=4)


def encode(text: str) -> tuple[Tensor]:
    return (torch.tensor(CHARS.encode((text + REAL)[:40])),)


def main(folder: Path, facts: Path, *, reveal: bool) -> None:
    told = CANARIES[0].text[:-1]
    attacks = [
        # All that are as the attacker was told, the canary among them; and others, which are none.
        ExtractionCallback(CANARIES[:2], CHARS, top_k=10, known=told, name="told", reveal=reveal),
        ExtractionCallback(CANARIES, CHARS, "beam", top_k=3, width=8, every_n_epochs=1, reveal=reveal),
    ]
    callbacks = [
        ExposureCallback(CANARIES, CHARS, samples=64, budget=500, references=50, reveal=reveal),
        *attacks,
        AuditCallback(CANARIES, CHARS, every_n_epochs=1),
        scan := ScanCallback([REAL], CHARS, budget=500, samples=64, reveal=reveal),
    ]
    database = f"sqlite:///{folder / 'mlflow.db'}"
    loggers = [
        WandbLogger(project="test", save_dir=folder, offline=True, config={"canaries": CANARIES}),
        TensorBoardLogger(folder, name="tensorboard"),
        CSVLogger(folder, name="csv"),
        MLFlowLogger("files", tracking_uri=f"file:{folder / 'mlruns'}"),
        MLFlowLogger("database", tracking_uri=database, artifact_location=str(folder / "artifacts")),
    ]
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", logger=loggers, callbacks=callbacks, default_root_dir=folder,
        enable_model_summary=False, enable_progress_bar=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(Model(CANARIES), CanaryDataModule(Data(list(CANARIES)), CANARIES, encode))
    trainer.save_checkpoint(folder / "whole.ckpt")
    # What people print to see what is there.
    print(CANARIES, CANARIES[0], callbacks, trainer.callback_metrics)
    print(callbacks[0].history, attacks[0].extractions, scan.scan, callbacks[0].history[-1].estimates)
    wandb.finish()
    wandb.teardown()  # the file is complete only when the service that writes it has ended
    candidates = [
        (candidate.text, name)
        for attack in attacks
        for name, found in attack.extractions.items()
        for candidate in found.candidates
    ]
    facts.write_text(json.dumps({"candidates": candidates, "history": len(callbacks[0].history)}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), Path(sys.argv[2]), reveal="--reveal" in sys.argv)
