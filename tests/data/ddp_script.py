"""Trains in two processes, and writes down what each of them saw. Run by test_ddp.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from tests.data.helpers import (
    Numbers,
    example,
    make_datamodule,
    make_module,
    make_trainer,
    numbers_loader,
    read,
    wrapped,
)

SIZE = 53


class Ours(Sampler[int]):
    """Splits the data by itself, so that Lightning is told not to."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 26

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 52, 2))


class Stream(IterableDataset[Any]):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        return (example(number) for number in range(self.rank, 52, 2))


class Batches(BatchSampler):
    """A batch sampler of someone's own."""


def loader(kind: str, trainer: Any) -> Any:
    numbers = Numbers(SIZE)
    if kind == "shuffled":
        return numbers_loader(SIZE, shuffle=True)
    if kind == "drop last":
        return numbers_loader(SIZE, shuffle=True, drop_last=True, num_workers=1)
    if kind == "weighted":
        return numbers_loader(SIZE, sampler=WeightedRandomSampler([1.0] * SIZE, 33))
    if kind == "distributed":
        return numbers_loader(SIZE, sampler=DistributedSampler(numbers))
    if kind == "batches":
        generator = torch.Generator().manual_seed(1)
        return DataLoader(numbers, batch_sampler=Batches(RandomSampler(numbers, generator=generator), 4, False))
    if kind == "by hand":
        return numbers_loader(SIZE, sampler=Ours(trainer.global_rank))
    return DataLoader(Stream(trainer.global_rank), batch_size=4)


class StopAt(pl.Callback):
    """Writes a checkpoint in the middle of the second epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == 2:
            trainer.save_checkpoint(self.path)


def run(kind: str, folder: Path) -> list[Any]:
    torch.manual_seed(torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
    checkpoint = folder / f"{kind.replace(' ', '-')}.ckpt"
    results = []
    for resume in (False, True):
        settings = {"strategy": "ddp", "devices": 2, "max_epochs": 2, "callbacks": [StopAt(checkpoint)]}
        trainer = make_trainer(pl, folder, use_distributed_sampler=kind != "by hand", **settings)
        data = wrapped(make_datamodule(pl, lambda trainer=trainer: loader(kind, trainer)))
        module = make_module(pl)
        trainer.fit(module, data, ckpt_path=checkpoint if resume else None)
        seen = {epoch: read(module.epoch_batches(epoch)) for epoch in range(2)}
        batches = {epoch: len(module.epoch_batches(epoch)) for epoch in range(2)}
        results.append(
            {
                "seen": seen,
                "batches": batches,
                "local": data.ledger.state_dict(),
                "gathered": data.ledger.gather().state_dict(),
            }
        )
    return results


if __name__ == "__main__":
    target = Path(sys.argv[1])
    found = {kind: run(kind, target) for kind in sys.argv[2:]}
    rank = torch.distributed.get_rank()
    (target / f"rank{rank}.json").write_text(json.dumps(found))
