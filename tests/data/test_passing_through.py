"""Everything but the training loader is that of the wrapped data module."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader

from lightning_exposure.data import CanaryDataModule
from tests.data.helpers import (
    CANARIES,
    LIGHTNING_WARNINGS,
    WANTED,
    Numbers,
    encode,
    make_datamodule,
    make_module,
    make_trainer,
    numbers_loader,
    read,
    wrapped,
)

pytestmark = LIGHTNING_WARNINGS


class Full(pl.LightningDataModule):
    """Has every hook, and notes when it is called."""

    def __init__(self, batch_size: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.batch_size = batch_size
        self.calls: list[str] = []
        self.state: Any = None

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        self.calls.append(f"setup {getattr(stage, 'value', stage)}")

    def teardown(self, stage: str) -> None:
        self.calls.append(f"teardown {getattr(stage, 'value', stage)}")

    def on_exception(self, exception: BaseException) -> None:
        self.calls.append(f"on_exception {exception}")

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.calls.append("before")
        return batch

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.calls.append("transfer")
        return batch.to(device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.calls.append("after")
        return batch

    def train_dataloader(self) -> Any:
        return numbers_loader(batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        return numbers_loader(3)

    def test_dataloader(self) -> Any:
        return numbers_loader(5)

    def predict_dataloader(self) -> Any:
        return numbers_loader(7)

    def state_dict(self) -> dict[str, Any]:
        return {"mine": 3}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.validated = self.tested = self.predicted = self.transferred = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.weight.sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated += len(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.tested += len(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.predicted += len(batch)
        return batch

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_hooks_loaders_and_state(tmp_path: Path) -> None:
    inner = Full()
    data = CanaryDataModule(inner, CANARIES, encode=encode)
    module = Module()
    trainer = make_trainer(pl, tmp_path, num_sanity_val_steps=0)
    trainer.fit(module, data)
    assert data.ledger[0] == WANTED
    assert inner.calls[:2] == ["prepare_data", "setup fit"]
    assert inner.calls[2:5] == ["before", "transfer", "after"]
    assert inner.calls.count("transfer") == 16 + 1
    assert inner.calls[-1] == "teardown fit"
    assert inner.trainer is trainer is data.trainer
    trainer.test(module, data, verbose=False)
    trainer.predict(module, data)
    assert (module.validated, module.tested, module.predicted) == (3, 5, 7)

    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path)
    other = Full()
    again = CanaryDataModule(other, CANARIES, encode=encode)
    make_trainer(pl, tmp_path, max_epochs=2, num_sanity_val_steps=0).fit(Module(), again, ckpt_path=path)
    assert other.state == {"mine": 3}
    assert again.ledger[0] == again.ledger[1] == WANTED
    # A checkpoint from before there were canaries.
    again.load_state_dict({"mine": 4})
    assert other.state == {"mine": 4}
    assert again.ledger.total == dict.fromkeys(WANTED, 0)


def test_an_exception_reaches_the_data_module(tmp_path: Path) -> None:
    class Bad(Module):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            raise RuntimeError("no")

    data = CanaryDataModule(Full(), CANARIES, encode=encode)
    with pytest.raises(RuntimeError, match="no"):
        make_trainer(pl, tmp_path, num_sanity_val_steps=0).fit(Bad(), data)
    assert "on_exception no" in data.calls


def test_hooks_that_the_data_module_has_not_are_left_to_the_module(tmp_path: Path) -> None:
    class Moves(Module):
        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            self.transferred += 1
            return batch

    module = Moves()
    data = wrapped(make_datamodule(pl, numbers_loader()))
    # Lightning says so once in a process, or not at all if another test made it say so before.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You have overridden `transfer_batch_to_device` in `LightningModule`")
        warnings.filterwarnings("ignore", "You defined a `validation_step` but have no `val_dataloader`")
        make_trainer(pl, tmp_path).fit(module, data)
    assert module.transferred == 16


def test_hyperparameters_and_attributes_are_those_of_the_data_module() -> None:
    inner = Full(batch_size=6)
    data: Any = CanaryDataModule(inner, CANARIES, encode=encode)
    assert data.hparams is inner.hparams
    assert data.hparams_initial == {"batch_size": 6}
    assert data._log_hyperparams
    data.batch_size = 9  # as the batch size finder does
    assert inner.batch_size == 9
    assert len(next(iter(data.train_dataloader()))) == 9
    inner.prepare_data_per_node = False
    assert data.prepare_data_per_node is False
    data.note = 3
    assert not hasattr(inner, "note")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = data.nothing


def test_data_modules_made_from_datasets() -> None:
    inner = pl.LightningDataModule.from_datasets(Numbers(50), Numbers(3), batch_size=5)
    data: Any = CanaryDataModule(inner, CANARIES, encode=encode)
    assert len(data.val_dataloader().dataset) == 3
    with pytest.warns(UserWarning, match="pin_memory"):
        assert read(data.train_dataloader())[1] == WANTED


def test_plain_loaders(tmp_path: Path) -> None:
    data = wrapped(
        numbers_loader(),
        val_dataloaders=numbers_loader(3),
        test_dataloaders=[numbers_loader(5)],
        predict_dataloaders=numbers_loader(7),
    )
    module = Module()
    trainer = make_trainer(pl, tmp_path, num_sanity_val_steps=0)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    trainer.predict(module, data)
    assert (module.validated, module.tested, module.predicted) == (3, 5, 7)
    assert data.ledger[0] == WANTED
    assert data.wrapped is None


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size"])
def test_combined_loaders_are_counted_as_they_are_read(mode: Any, tmp_path: Path) -> None:
    class Both(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.seen: list[Any] = []

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.seen += [] if batch["b"] is None else [batch["b"]]
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = wrapped(CombinedLoader({"a": numbers_loader(100), "b": numbers_loader(20)}, mode), loader="b")
    module = Both()
    make_trainer(pl, tmp_path).fit(module, data)
    assert read(module.seen)[1] == data.ledger[0]
    assert (data.ledger[0] == WANTED) == (mode != "max_size_cycle")


def test_reloading_every_epoch(tmp_path: Path) -> None:
    data = wrapped(make_datamodule(pl, lambda: numbers_loader(shuffle=True)))
    module = make_module(pl)
    make_trainer(pl, tmp_path, max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(module, data)
    assert [data.ledger[epoch] for epoch in data.ledger.epochs] == [WANTED] * 3
    assert [read(module.epoch_batches(epoch))[1] for epoch in range(3)] == [WANTED] * 3


def test_pickle() -> None:
    data = wrapped(Full())
    copy = pickle.loads(pickle.dumps(data))
    assert isinstance(copy, CanaryDataModule)
    assert isinstance(copy, pl.LightningDataModule)
    assert read(copy.train_dataloader()) == read(data.train_dataloader())
    plain = pickle.loads(pickle.dumps(wrapped(DataLoader(Numbers(9)), val_dataloaders=DataLoader(Numbers(2)))))
    assert len(plain.val_dataloader()) == 2
    assert plain.ledger.epochs == []
