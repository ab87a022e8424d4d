"""The constructors as LightningCLI sees them: plain types, all of them settable."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch.cli import LightningCLI

from lightning_exposure.data import TextDataModule
from lightning_exposure.modules import LanguageModel
from tests.data.helpers import LIGHTNING_WARNINGS

pytest.importorskip("jsonargparse", reason="an optional part of Lightning")
pytestmark = LIGHTNING_WARNINGS


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: Any) -> None:
    # LightningCLI complains if the program itself, here pytest, was given arguments.
    monkeypatch.setattr("sys.argv", ["program"])
    # Lightning uses names of jsonargparse that are about to go.
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


def test_settings_from_the_command_line(tmp_path: Any) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "default_root_dir": str(tmp_path), "accelerator": "cpu"}
    cli = LightningCLI(
        LanguageModel,
        TextDataModule,
        args=[
            "--model.architecture=gru",
            "--model.vocab_size=30",
            "--model.hidden_size=8",
            "--model.lr=0.5",
            "--model.scheduler=cosine",
            "--data.window=12",
            "--data.level=word",
        ],
        run=False,
        save_config_callback=None,
        seed_everything_default=False,
        trainer_defaults=quiet,
    )
    assert (cli.model.hparams["architecture"], cli.model.hparams["lr"]) == ("gru", 0.5)
    assert cli.model.network.layers.hidden_size == 8
    assert (cli.datamodule.hparams["window"], cli.datamodule.hparams["level"]) == (12, "word")


def test_every_setting_is_shown_with_its_help(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        LightningCLI(LanguageModel, TextDataModule, args=["--help"], run=False)
    shown = capsys.readouterr().out
    for option in ("--model.architecture", "--model.dropout", "--model.optimizer", "--data.val_fraction"):
        assert option in shown
    # The help is that of the class documentation.
    assert "how many attention heads" in " ".join(shown.split())
    assert "How many windows are in a batch" in " ".join(shown.split())
