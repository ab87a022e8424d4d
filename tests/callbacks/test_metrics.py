"""What the numbers of `ExposureCallback` are called, and which of them a decision may rest on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lightning_exposure import Canary, CanarySet, ExposureCallback
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.measuring._metrics import OTHERS, SUMMARIES, exposure_metrics
from lightning_exposure.report.record import Measurement
from tests.callbacks.setups import BOTH, CANARIES, CHARS, PIN, Model, loader, trainer

EXACT = ExposureEstimate("my pin is 0000", 4.0, 4.0, 4.0, "exact", 625, 20.0, PIN.bits, False, 0.95, 100)
WIDE = replace(EXACT, bits=6.0, low=3.0, high=9.0, method="importance", rank=156.2)


def measured(**estimates: ExposureEstimate) -> Measurement:
    return Measurement(epoch=1, step=9, train_loss=None, val_loss=None, seconds=0.5, estimates=estimates)


@pytest.mark.parametrize("name", ["exposure", "x"])
def test_all_names_and_numbers(name: str) -> None:
    found = exposure_metrics(name, measured(a=EXACT, b=WIDE), {"a": replace(EXACT, bits=1.0), "b": EXACT})
    assert found == {
        f"{name}/a": 4.0, f"{name}_low/a": 4.0, f"{name}_high/a": 4.0, f"{name}_gain/a": 3.0,
        f"{name}/b": 6.0, f"{name}_low/b": 3.0, f"{name}_high/b": 9.0, f"{name}_gain/b": 2.0,
        f"{name}/max": 6.0, f"{name}/mean": 5.0, f"{name}_low/max": 4.0, f"{name}_high/max": 9.0,
        f"{name}/seconds": 0.5, f"{name}_gain/mean": 2.5,
    }  # fmt: skip


def test_without_a_baseline_there_is_no_gain() -> None:
    assert not any("gain" in name for name in exposure_metrics("exposure", measured(a=EXACT)))


def test_no_name_is_the_directory_of_another(tmp_path: Path) -> None:
    for name in ("exposure", "privacy/exposure"):
        run = trainer(tmp_path, ExposureCallback(BOTH, CHARS, name=name), max_epochs=1)
        run.fit(Model(), loader(BOTH), loader(shuffle=False))
        names = set(run.callback_metrics)
        assert {f"{name}/{BOTH[0].id}", f"{name}_low/max"} <= names
        assert not [(one, other) for one in names for other in names if other.startswith(f"{one}/")]


def test_a_checkpoint_may_have_the_numbers_in_its_name_and_a_stop_rests_on_what_is_certain(tmp_path: Path) -> None:
    often = CANARIES[1].id
    keeping = ModelCheckpoint(
        tmp_path,
        monitor="exposure_low/max",
        mode="min",
        filename=f"{{exposure/{often}:.1f}}-{{exposure_low/{often}:.1f}}",
    )
    stopping = EarlyStopping("exposure_low/max", mode="max", patience=10, stopping_threshold=0.0)
    torch.manual_seed(0)
    run = trainer(
        tmp_path, ExposureCallback(CANARIES, CHARS), keeping, stopping, max_epochs=3, enable_checkpointing=True
    )
    run.fit(Model(), loader())
    assert run.current_epoch == 1  # the first exposure above 0 stops it
    assert Path(keeping.best_model_path).is_file()


def test_an_id_that_is_the_name_of_a_summary_is_refused() -> None:
    for name in (*SUMMARIES, *OTHERS):
        canaries = CanarySet([Canary(name, "my pin is 0000", PIN, 1)])
        with pytest.raises(ArgumentError, match=f"the id '{name}', which is the name of a metric or chart"):
            ExposureCallback(canaries, CHARS)
