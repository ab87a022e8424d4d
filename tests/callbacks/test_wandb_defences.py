"""What was done against memorization is in the configuration of a real offline run of W&B."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger
from wandb.proto import wandb_internal_pb2

from lightning_exposure import ExposureCallback
from lightning_exposure.report import RunRecord
from lightning_exposure.report.wandb import log_defences
from tests.callbacks.setups import CANARIES, CHARS, Model, loader, trainer
from tests.callbacks.test_wandb import records


class Quantized(L.Callback):
    """A defence that says so; what it says of a canary must not leave the machine."""

    def add_to_record(self, record: RunRecord) -> None:
        record.defences.append({"name": "quantize", "levels": 256, "kept": CANARIES[0].text, "texts": ["a", "b"]})


def config_of(folder: Path, *, until: str = "defences") -> dict[str, Any]:
    """Another process writes it: on a busy machine its end may come after `wandb.finish`."""
    for _ in range(100):
        found = _config_in(folder)
        if until in found:
            break
        time.sleep(0.1)
    return found


def _config_in(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("**/*.wandb")
    found: dict[str, Any] = {}
    for data in records(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in [*record.config.update, *record.run.config.update]:
            found[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return found


def test_runs_can_be_grouped_by_their_defences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    exposure = ExposureCallback(CANARIES, CHARS, references=0, baseline=False)
    logger = WandbLogger(project="test", save_dir=tmp_path)
    run = trainer(tmp_path, exposure, Quantized(), logger=logger, max_epochs=1)
    run.fit(Model(), loader())
    wandb.finish()
    config = config_of(tmp_path)
    assert config["defences"] == ["quantize"]
    assert config["defence"] == "quantize"
    assert config["defence_settings"] == {"quantize": {"levels": 256}}


def test_a_run_without_defences_says_so(tmp_path: Path) -> None:
    with wandb.init(project="test", mode="offline", dir=tmp_path) as run:
        log_defences(run, RunRecord(CANARIES))
        assert dict(run.config) == {"defences": [], "defence": "none", "defence_settings": {}}
