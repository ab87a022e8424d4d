"""The example of generated digits runs, and leaves a table and a picture."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.examples.test_examples import run


def test_generated_digits(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    out = run("generated_digits.py", cwd, "--out", "made").splitlines()
    assert out[0] == "300 digits to train on, 748 held out"
    assert [line.split()[:2] for line in out[3:8]] == [
        ["copy", "none"], ["VAE", "none"], ["VAE", "9.98"], ["GAN", "none"], ["GAN", "9.98"],
    ]  # fmt: skip
    assert out[8].endswith("s of CPU time")
    with (cwd / "made" / "digits.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["epsilon"]) for row in rows[:2]] == [("copy", ""), ("VAE", "")]
    for row in rows:
        assert abs(float(row["privacy_loss"]) - (float(row["P_members"]) - 0.5) / 0.5) < 4e-4
        difference = float(row["P_members"]) - float(row["P_held_out"])
        assert abs(float(row["leak"]) - difference) < 2e-4
        assert float(row["sharp_leak_low"]) <= float(row["sharp_leak"]) <= float(row["sharp_leak_high"])
        assert abs(float(row["p1"]) - float(row["p2"]) - float(row["p1_minus_p2"])) < 2e-4
    assert float(rows[0]["sharp_leak_low"]) > 0.05, "what is given away as it is, is seen"
    assert (cwd / "made" / "digits.png").stat().st_size > 5_000
