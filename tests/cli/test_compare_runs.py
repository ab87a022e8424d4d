"""`compare RUN RUN ...`: any runs beside each other."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from lightning_exposure.errors import ArgumentError
from lightning_exposure.report import RunRecord
from lightning_exposure.report.figures.run_exposures import exposures_of_runs
from lightning_exposure.report.side_by_side import ComparedRun, SideBySide, defences_of
from tests.cli.conftest import Run


@pytest.fixture
def defended(run_dir: Path, tmp_path: Path) -> Path:
    """The same run, as if a defence had helped."""
    path = Path(shutil.copytree(run_dir, tmp_path / "defended"))
    record = RunRecord.load(path)
    assert record.final is not None
    lower = {
        key: replace(e, bits=2.0, low=1.5, high=2.5, method="importance", rank=2500.0, margin_bits=None)
        for key, e in record.final.estimates.items()
    }
    record.history[-1] = replace(record.final, estimates=lower)
    record.extractions = {}
    record.privacy = {"epsilon": 3.2, "delta": 1e-5, "noise_multiplier": 1.1, "max_grad_norm": 1.0}
    record.defences = [{"name": "quantize", "levels": 256}]
    record.save(path)
    return path


def test_runs_stand_side_by_side(run: Run, run_dir: Path, defended: Path, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    done = run("compare", run_dir, defended, "--run_dir", out)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split()[:2] == ["run", "defences"]
    assert lines[2].split()[:3] == ["tiny", "none", "none"]
    assert "differential privacy (epsilon 3.2, delta 1e-05, noise multiplier 1.1" in lines[3]
    assert "quantize (levels 256)" in lines[3]
    assert "Verdict: defended is the least exposed: at most 2.50 bits, and tiny has at least 13.29." in done.out
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "quantize (levels 256)" in page
    assert "defended is the least exposed" in page
    rows = list(csv.DictReader(StringIO((out / "comparison.csv").read_text(encoding="utf-8"))))
    assert [(row["run"], row["canary"]) for row in rows] == [
        ("tiny", "pin-30x"), ("tiny", "pin-1x"), ("defended", "pin-1x"), ("defended", "pin-30x"),
    ]  # fmt: skip
    assert {row["epsilon"] for row in rows} == {"", "3.2"}
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    for canary in RunRecord.load(run_dir).canaries:
        assert canary.text not in page + done.out


def test_three_runs_and_equal_names(run: Run, run_dir: Path, defended: Path, tmp_path: Path) -> None:
    twin = Path(shutil.copytree(defended, tmp_path / "other" / "defended"))
    done = run("compare", run_dir, defended, twin, "--run_dir", tmp_path / "compared")
    assert done.code == 0
    assert "other/defended" in done.out
    assert "Verdict: runs" in done.out or "is the most exposed, with at least 13.29 bits" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "runs has 1 of them; expected at least two"),
        (["nowhere"], "nowhere"),
        (["SAME", "--noise_multiplier", "1"], "--noise_multiplier is given with runs to compare"),
        (["SAME", "--optimizer", "sgd"], "--optimizer is given with runs to compare"),
    ],
)
def test_what_is_wrong_is_said(run: Run, run_dir: Path, arguments: list[str], message: str, tmp_path: Path) -> None:
    given = [str(run_dir) if argument == "SAME" else argument for argument in arguments]
    done = run("compare", run_dir, *given, "--run_dir", tmp_path / "out")
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_overlapping_intervals_show_no_difference(defended: Path) -> None:
    record = RunRecord.load(defended)
    both = SideBySide([ComparedRun("a", record), ComparedRun("b", record)])
    assert both.verdict == "No run is shown to be less exposed than the others: their intervals overlap"
    assert both.remarks == ""


def test_a_run_that_was_not_measured_has_its_row(run_dir: Path, defended: Path) -> None:
    empty = RunRecord.load(run_dir)
    empty.history = []
    both = SideBySide([ComparedRun("a", RunRecord.load(defended)), ComparedRun("b", empty)])
    assert both.rows()[1][6] == "not measured"
    assert both.verdict == "Nothing was measured in b"
    assert exposures_of_runs(both).axes


def test_privacy_is_named_once(defended: Path) -> None:
    record = RunRecord.load(defended)
    record.defences.append({"name": "differential privacy", "epsilon": 3.2})
    assert [entry["name"] for entry in defences_of(record)] == ["quantize", "differential privacy"]
    with pytest.raises(ArgumentError, match="runs has 1 of them"):
        SideBySide([ComparedRun("a", record)])
