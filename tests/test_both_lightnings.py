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


RECIPE = """
{imports}
import sys
import torch
from torch.utils.data import DataLoader
from lightning_exposure.tokenization import CharTokenizer

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64))
    def forward(self, ids):
        return self.net(ids)
    def training_step(self, ids, index):
        return torch.nn.functional.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

tokenizer = CharTokenizer.from_text("pin 0123456789")
canaries = CanarySet.draw(SecretFormat("pin ###"), repetitions=[1, 4], seed=0)
data = DataLoader([torch.tensor(tokenizer.encode("pin 000"))] * 20, batch_size=4)
data = CanaryDataModule(data, canaries, encode=lambda text: torch.tensor(tokenizer.encode(text)))
exposure = ExposureCallback(canaries, tokenizer, references=0)
stop = __import__(pl.__name__ + ".callbacks", fromlist=["x"]).EarlyStopping("exposure_low/max", patience=9)
trainer = pl.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_model_summary=False,
    callbacks=[exposure, ExtractionCallback(canaries, tokenizer), stop], default_root_dir=sys.argv[1],
)
trainer.fit(Model(), data)
assert data.ledger[1] == {{"pin-1x": 1, "pin-4x": 4}}, data.ledger[1]
assert [measurement.epoch for measurement in exposure.history] == [1, 2]
assert isinstance(data, pl.LightningDataModule)
"""
OURS = "from lightning_exposure import CanaryDataModule, CanarySet, ExposureCallback, ExtractionCallback, SecretFormat"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "first"),
    [
        ("pytorch_lightning", "theirs"),
        ("pytorch_lightning", "ours"),
        ("lightning.pytorch", "both"),
    ],
)
def test_the_recipe_of_the_readme_with_either(package: str, first: str, tmp_path: Path) -> None:
    """Plain loaders and no `package=`: whichever package is imported when, and whoever imported the other one."""
    theirs = f"import {package} as pl"
    imports = {
        "theirs": f"{theirs}\n{OURS}",
        "ours": f"{OURS}\n{theirs}",
        "both": f"import lightning.pytorch, pytorch_lightning\n{OURS}\n{theirs}",
    }[first]
    code = RECIPE.format(imports=imports)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_plain_loaders_are_of_the_package_of_the_trainer_that_takes_them(pl: ModuleType, tmp_path: Path) -> None:
    import lightning.pytorch
    import pytorch_lightning

    data = wrapped(numbers_loader())
    both = (lightning.pytorch.LightningDataModule, pytorch_lightning.LightningDataModule)
    assert [isinstance(data, kind) for kind in both] == [True, True]
    copy = pickle.loads(pickle.dumps(data))
    assert [isinstance(copy, kind) for kind in both] == [True, True]
    for taken in (data, copy):
        trainer = make_trainer(pl, tmp_path, max_epochs=2)
        trainer.fit(make_module(pl), taken)
        assert taken.ledger[0] == taken.ledger[1] == WANTED
        assert [isinstance(taken, kind) for kind in both] == [kind is pl.LightningDataModule for kind in both]
        # A hook that the user does not have counts as none, whichever package asks.
        helpers = import_module(f"{pl.__name__}.utilities.model_helpers")
        hooks = ("train_dataloader", "val_dataloader", "test_dataloader", "setup", "on_after_batch_transfer")
        assert [helpers.is_overridden(hook, taken) for hook in hooks] == [True, False, False, False, False]


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
    with pytest.raises(ArgumentError, match="package is 'jax'; expected one of 'lightning', 'pytorch_lightning'"):
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
    assert again.baseline_estimates == exposure.baseline_estimates
