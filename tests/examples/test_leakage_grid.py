"""The example of the leakage grid runs, and leaves a table and a figure."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.examples.test_examples import run


def test_leakage_grid(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    out = run("leakage_grid.py", cwd, "--figure", "grid.png", "--csv", "grid.csv").splitlines()
    assert [line.split()[0] for line in out[1:4]] == ["ssn", "credit-card", "address"]
    assert out[4].endswith("s of CPU time")
    with (cwd / "grid.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["cardinality"], row["samples"]) for row in rows] == [
        ("ssn", "2", "10"), ("credit-card", "2", "10"), ("address", "2", "10"),
    ]  # fmt: skip
    assert (cwd / "grid.png").stat().st_size > 5_000
