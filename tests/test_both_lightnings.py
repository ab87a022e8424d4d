"""`lightning` and `pytorch_lightning`: everything of ours works under the Trainer of either."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.utils.data import DataLoader

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback, SecretFormat
from lightning_exposure.data import CanaryDataModule, TextDataModule
from lightning_exposure.errors import ArgumentError
from lightning_exposure.modules import LanguageModel
from tests.data.helpers import (
    CANARIES,
    LIGHTNING_WARNINGS,
    WANTED,
    NumberStream,
    encode,
    make_datamodule,
    make_module,
    make_trainer,
    numbers_loader,
    read,
    wrapped,
)

pytestmark = LIGHTNING_WARNINGS
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request: Any) -> ModuleType:
    return import_module(request.param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_data_module_of_either(pl: ModuleType, stream: bool, tmp_path: Path) -> None:
    loader: Any = DataLoader(NumberStream(50), batch_size=4) if stream else numbers_loader(shuffle=True)
    data = CanaryDataModule(make_datamodule(pl, loader), CANARIES, encode=encode)
    assert isinstance(data, pl.LightningDataModule)
    assert isinstance(data, CanaryDataModule)
    module = make_module(pl)
    make_trainer(pl, tmp_path, max_epochs=2).fit(module, data)
    for epoch in range(2):
        assert read(module.epoch_batches(epoch))[1] == data.ledger[epoch] == WANTED
    copy = pickle.loads(pickle.dumps(wrapped(loader, package=pl.__name__)))
    assert isinstance(copy, pl.LightningDataModule)


def test_plain_loaders_for_either(pl: ModuleType, tmp_path: Path) -> None:
    data = wrapped(numbers_loader(), package=pl.__name__)
    make_trainer(pl, tmp_path).fit(make_module(pl), data)
    assert data.ledger[0] == WANTED


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_plain_loaders_take_the_package_that_is_imported(package: str) -> None:
    code = (
        f"import {package} as pl\n"
        "from tests.data.helpers import numbers_loader, wrapped\n"
        "assert isinstance(wrapped(numbers_loader()), pl.LightningDataModule)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_text_and_language_model_of_either(pl: ModuleType, tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog\n" * 20
    data = TextDataModule.under(pl.__name__)(text, canaries=CANARIES, window=16, batch_size=8)
    assert isinstance(data, pl.LightningDataModule)
    data.setup()
    make = LanguageModel.under(pl.__name__)
    model = make("gru", vocab_size=data.tokenizer.vocab_size, hidden_size=8, embedding_size=8)
    trainer = make_trainer(pl, tmp_path)
    trainer.fit(model, data)
    assert trainer.callback_metrics["val_loss"] > 0
    path = tmp_path / "model.ckpt"
    trainer.save_checkpoint(path)
    again = make.load_from_checkpoint(path)
    assert type(again) is type(model)
    assert isinstance(again, pl.LightningModule)
    assert again.hparams == model.hparams
    assert type(pickle.loads(pickle.dumps(again))) is type(model)
    assert make.__name__ == "LanguageModel"
    assert make.__doc__ == LanguageModel.__doc__


def test_the_default_is_lightning() -> None:
    assert LanguageModel.under("lightning") is LanguageModel.under("lightning.pytorch") is LanguageModel
    assert TextDataModule.under("lightning") is TextDataModule
    assert LanguageModel.under("pytorch_lightning") is LanguageModel.under("pytorch_lightning")
    with pytest.raises(ArgumentError, match="package='jax': expected one of 'lightning', 'pytorch_lightning'"):
        LanguageModel.under("jax")


def test_callbacks_under_either(pl: ModuleType, tmp_path: Path) -> None:
    """The module, the data and the callbacks together, with a checkpoint that monitors exposure."""
    canaries = CanarySet.draw(SecretFormat("the pin is ###"), repetitions=[40], seed=0)
    data = TextDataModule.under(pl.__name__)("once upon a time there was a pin\n" * 60, canaries=canaries, window=24)
    data.setup("fit")
    model = LanguageModel.under(pl.__name__)(vocab_size=data.tokenizer.vocab_size, hidden_size=24, num_layers=1)
    exposure, attack = ExposureCallback(canaries), ExtractionCallback(canaries, verbose=False)
    keeping = import_module(f"{pl.__name__}.callbacks").ModelCheckpoint(
        tmp_path / "kept", monitor="exposure/max", mode="max"
    )
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[exposure, attack, keeping], default_root_dir=tmp_path,
        logger=import_module(f"{pl.__name__}.loggers").CSVLogger(tmp_path), enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(model, data)
    assert [measurement.epoch for measurement in exposure.history] == [1, 2]
    assert set(attack.extractions) == {canaries[0].format.name}
    assert keeping.best_model_score is not None
    again = ExposureCallback(canaries)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", callbacks=[again, attack], default_root_dir=tmp_path, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")
        trainer.fit(model, data, ckpt_path=keeping.best_model_path)
    assert again.history[-1].epoch == 3
    assert again.baseline == exposure.baseline
