"""Small datasets, data modules and models for the tests of the data layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_exposure.data import CanaryDataModule
from lightning_exposure.secrets import CanarySet, SecretFormat

# What Lightning says about small machines, and what it uses of PyTorch that PyTorch is about to change.
LIGHTNING_WARNINGS = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(r"ignore:The '\w+_dataloader' does not have many workers:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:This DataLoader will create \d+ worker processes:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"),
]

LENGTH = 8
CANARIES = CanarySet.draw(SecretFormat("pin ####"), repetitions=[0, 1, 3, 7], seed=0)
WANTED = {canary.id: canary.repetitions for canary in CANARIES}
COUNT = sum(WANTED.values())


def encode(text: str) -> torch.Tensor:
    """A canary as eight bytes: all of them above 31, while the examples below hold their number and zeros."""
    return torch.tensor(list(text.encode()))


def example(number: int) -> torch.Tensor:
    return torch.tensor([number] + [0] * (LENGTH - 1))


class Numbers(Dataset[Any]):
    """Example `i` says `i`."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return example(index)


class NumberStream(IterableDataset[Any]):
    """The same as a stream; workers share it among themselves."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (example(number) for number in range(first, self.size, step))


class SizedNumberStream(NumberStream):
    def __len__(self) -> int:
        return self.size


def read(batches: Iterable[Any]) -> tuple[list[int], dict[str, int]]:
    """The numbers in some batches in their order, and how often each canary was among them: by looking."""
    rows = [row for batch in batches for row in batch]
    texts = Counter(bytes(row.tolist()).decode() for row in rows if row[1])
    found = {canary.id: texts.pop(canary.text, 0) for canary in CANARIES}
    assert not texts
    return [int(row[0]) for row in rows if not row[1]], found


def places(batches: Iterable[Any]) -> list[int]:
    """Where in an epoch the canaries are."""
    rows = [row for batch in batches for row in batch]
    return [place for place, row in enumerate(rows) if row[1]]


def wrapped(given: Any, **settings: Any) -> CanaryDataModule:
    return CanaryDataModule(given, CANARIES, encode=encode, **settings)


def make_module(pl: ModuleType) -> Any:
    """A module that trains on anything and keeps the batches it saw."""

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.seen: list[tuple[int, Any]] = []

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.seen.append((self.current_epoch, batch))
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def epoch_batches(self, epoch: int) -> list[Any]:
            return [batch for when, batch in self.seen if when == epoch]

    return Module()


def make_datamodule(pl: ModuleType, loader: Any) -> Any:
    class Data(pl.LightningDataModule):  # type: ignore[misc, name-defined]
        def train_dataloader(self) -> Any:
            return loader() if callable(loader) else loader

    return Data()


def make_trainer(pl: ModuleType, path: Path, **settings: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 1,
    }
    return pl.Trainer(**{**quiet, "default_root_dir": path, **settings})


def numbers_loader(size: int = 50, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Numbers(size), **{"batch_size": 4, **settings})
