"""The example of sanitization runs, and its tables hold what the page says they hold."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.examples.test_examples import run


@pytest.mark.slow
def test_sanitization(tmp_path: Path) -> None:
    small = ("--characters", "3000", "--partitions", "2", "--retrain", "1", "--epochs", "1", "--hidden_size", "8")
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    said = run("sanitization.py", cwd, *small, "--out", "out", fast=False)
    assert said.count("(with grouping)") == said.count("(without grouping)") == 2
    with (cwd / "out" / "recall.csv").open(encoding="utf-8") as file:
        recall = list(csv.DictReader(file))
    assert {(row["secret"], row["recall"]) for row in recall if row["per"] == "template"} == {
        ("fits the template", "1.0"),
        ("written differently", "0.0"),
        ("spelled in words", "0.0"),
        ("in three places", "0.0"),
    }
    for row in recall:
        if row["per"] != "template":
            assert float(row["low"]) <= int(row["found"]) / int(row["partitions"]) <= float(row["high"])
    with (cwd / "out" / "retrained.csv").open(encoding="utf-8") as file:
        retrained = list(csv.DictReader(file))
    assert [row["trained on"] for row in retrained[::2]] == [
        "everything",
        "without the template",
        "without the top 10%, partition 0",
    ]
    assert (cwd / "out" / "recall.png").stat().st_size > 10_000
