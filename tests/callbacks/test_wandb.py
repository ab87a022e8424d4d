"""Real offline runs of Weights & Biases, read back from their files."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger
from wandb.proto import wandb_internal_pb2

from lightning_exposure import ExposureCallback, ExtractionCallback
from lightning_exposure.secrets import Mask
from tests.callbacks.setups import BOTH, CANARIES, CHARS, PIN, Model, loader, trainer


def records(file: Path) -> Iterator[bytes]:
    """The records of a run file: a log in blocks of 32 KiB, in which a record may be cut in several chunks."""
    data, block = file.read_bytes(), 2**15
    at, parts = 7, []  # behind the file's own header
    while at + 7 <= len(data):
        if block - at % block < 7:  # no header fits in the rest of a block
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last chunk
            yield b"".join(parts)
            parts = []


def read_back(folder: Path) -> dict[str, list[Any]]:
    """Everything that a run logged, by key."""
    (file,) = folder.glob("**/*.wandb")
    found: dict[str, list[Any]] = {}
    for data in records(file):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            key = item.key or "/".join(item.nested_key)
            found.setdefault(key, []).append(json.loads(item.value_json))
    return found


def tables(folder: Path, key: str) -> list[dict[str, Any]]:
    """The tables that a run stored under a key."""
    name = key.replace("/", os.sep)
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"**/media/table/{name}*.table.json"))]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.mark.usefixtures("offline")
def test_scalars_charts_and_tables_are_in_the_run_file(tmp_path: Path) -> None:
    exposure, attack = (
        ExposureCallback(BOTH, CHARS, references=100, method="importance", samples=50),
        ExtractionCallback(BOTH, CHARS, verbose=False),
    )
    logger = WandbLogger(project="test", save_dir=tmp_path, offline=True)
    try:
        trainer(tmp_path, exposure, attack, logger=logger, max_epochs=3).fit(
            Model(), loader(BOTH), loader(shuffle=False)
        )
    finally:
        wandb.finish()
        wandb.teardown()  # the file is complete only when the service that writes it has ended
    logged = read_back(tmp_path)
    often = CANARIES[1].id
    bits = [measurement.estimates[often].bits for measurement in exposure.history]
    assert logged[f"exposure/{often}"] == pytest.approx(bits, rel=1e-5)
    assert len(logged["exposure/mean"]) == 3
    assert logged["extraction/extracted"][-1] == len(attack.extracted)
    # Every scalar stands beside the trainer's own step.
    assert logged["trainer/global_step"]
    # The histogram of references.
    assert logged[f"exposure/references/{PIN.name}/_type"] == ["histogram"]
    assert sum(logged[f"exposure/references/{PIN.name}/values"][-1]) == 100
    # Charts and tables are stored as table files.
    (inserted,) = tables(tmp_path, "exposure/canaries")
    assert [row[:3] for row in inserted["data"]] == [[c.id, Mask().text(c.text, c.format), c.repetitions] for c in BOTH]
    (found,) = tables(tmp_path, "extraction/table")
    candidates = [(c.text, a.format) for a in attack.extractions.values() for c in a.candidates]
    assert {row[2] for row in found["data"]} == {Mask().text(*candidate) for candidate in candidates}
    (judged,) = tables(tmp_path, "extraction/verdicts")
    assert judged["data"] == [[key, str(verdict)] for key, verdict in attack.verdicts.items()]
    (measured,) = tables(tmp_path, "exposure/estimates")
    final = exposure.history[-1].estimates
    assert [row[0] for row in measured["data"]] == list(final)
    ahead = measured["columns"].index("ahead of the next (bits)")
    assert [row[ahead] for row in measured["data"]] == [found.margin_bits for found in final.values()]
    series = tables(tmp_path, "exposure/over_epochs")
    assert len(series) == 3
    newest = max(series, key=lambda table: len(table["data"]))
    assert len(newest["data"]) == len(BOTH) * 4  # before training, and after each of three epochs
    # A line goes through what is certain, the lower ends of the intervals.
    lows = [
        exposure.baseline_estimates[often].low,
        *(measurement.estimates[often].low for measurement in exposure.history),
    ]
    drawn = [row[2] for row in newest["data"] if row[1] == often]
    assert drawn == pytest.approx(lows, rel=1e-5)
    fits = tables(tmp_path, f"exposure/references_fit/{PIN.name}")
    assert any("skew-normal" in str(row) for row in fits[0]["data"])


NO_LOGIN = """
from pathlib import Path
import sys
from lightning.pytorch.loggers import WandbLogger
from lightning_exposure import ExposureCallback
from lightning_exposure.report.wandb import stay_offline_without_login
from tests.callbacks.setups import CANARIES, CHARS, Model, loader, trainer
folder = Path(sys.argv[1])
logger = WandbLogger(project="test", save_dir=folder)
stay_offline_without_login([logger])
trainer(folder, ExposureCallback(CANARIES, CHARS), logger=logger, max_epochs=1).fit(Model(), loader())
"""


def test_without_a_login_it_falls_back_to_offline_and_says_so(tmp_path: Path) -> None:
    """In a process of its own, where nobody has ever logged in."""
    root = Path(__file__).resolve().parents[2]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", NO_LOGIN, str(tmp_path)], cwd=root, env=environment, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "W&B has no API key here: logging to local files instead" in done.stderr
    assert read_back(tmp_path)["exposure/mean"]
