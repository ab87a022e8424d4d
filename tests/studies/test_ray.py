"""The runner "ray": a real cluster of two workers on this machine gives the very table of the runner "local"."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.studies import run_study
from lightning_exposure.studies._directory import JOURNAL
from tests.studies import toy_study

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray has warnings of its own
pytest.importorskip("ray.tune", reason="the extra `ray` is not installed")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: Any) -> Path:
    path = tmp_path / "log.txt"
    monkeypatch.setenv(toy_study.LOG, str(path))
    return path


def test_ray_gives_the_table_of_local(tmp_path: Path, log: Path) -> None:
    settings: dict[str, Any] = {"scale": "tiny", "text": "some text"}
    run_study("toy", tmp_path / "local", workers=0, **settings)
    rows_when_told = []

    def count(progress: Any) -> None:
        journal = tmp_path / "ray" / JOURNAL
        rows_when_told.append(journal.read_text().count("\n") if journal.exists() else 0)

    log.unlink()
    run_study("toy", tmp_path / "ray", runner="ray", workers=2, watch=count, **settings)
    for name in ("table.csv", "summary.csv", "study.json"):
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes()
    assert rows_when_told == list(range(7))  # each as it came, not all at the end
    processes = {line.split()[2] for line in log.read_text().splitlines()}
    assert len(processes) == 6  # a trial is a process of its own, and none of them is this one
    assert str(os.getpid()) not in processes
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_on_ray_a_cell_fails_alone_too(tmp_path: Path) -> None:
    result = run_study("toy-failing", tmp_path / "a", scale="tiny", text="some text", runner="ray", workers=2)
    assert [row.get("loss") for row in result.rows] == [0.5, None, None, None, None, 0.5]
    reasons = {row["kind"]: str(row["error"]) for row in result.failed}
    assert reasons["raises"] == "ValueError: the loss is a potato"
    assert reasons["dies"].startswith("WorkerError: ")
