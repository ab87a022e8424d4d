"""`demo`: in small for every day, and as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_exposure.cli.models import load_any_model
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.report import RunRecord
from tests.cli.conftest import Run


def test_in_small(run: Run, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # An untrained model gives the attack nothing to go by: it would use up its whole budget.
    monkeypatch.setattr("lightning_exposure.cli.commands.demo.ATTACK", {"budget": 2000})
    code, out, err = run("demo", "--run_dir=run", "--max_epochs=1", f"--text={text_file}", "--seed=3")
    assert (code, err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "no litter"
    lines = out.splitlines()
    assert "parameters" in lines[0]
    assert [line for line in lines if line.startswith(("0 ", "1 "))]
    assert "Report: run/report.html" in lines
    assert lines[-1].startswith("Verdict: ")
    record = RunRecord.load(tmp_path / "run")
    assert [canary.repetitions for canary in record.canaries] == [1, 4, 16]
    assert record.settings["seed"] == 3
    assert record.settings["parameters"] > 100_000


def test_the_text_is_long() -> None:
    assert len(python_topics()) > 300_000


@pytest.mark.slow
def test_as_it_is(run: Run, tmp_path: Path) -> None:
    code, out, err = run("demo", f"--run_dir={tmp_path / 'run'}")
    assert (code, err) == (0, "")
    record = RunRecord.load(tmp_path / "run")
    assert "ssn-16x" in record.extracted
    attack = record.extractions["ssn"]
    assert attack.optimal
    assert attack.candidates[0].text == record.canaries["ssn-16x"].text
    assert record.final is not None
    assert record.final.estimates["ssn-16x"].rank == 1
    verdicts = record.verdicts
    assert str(verdicts["ssn-16x"]) == "1st guess, proven"
    # What is not among the first three has a rank all the same.
    assert record.final.estimates["ssn-4x"].rank == verdicts["ssn-4x"].proven.lowest
    assert (verdicts["ssn-4x"].mood, verdicts["ssn-1x"].mood) == ("leaks", "holds")
    assert out.splitlines()[-1] == (
        "Verdict: 2 of 3 secrets can be extracted: 1 with the first guess, 1 more within 1,000,000 guesses."
    )
    model = load_any_model(str(tmp_path / "run")).model
    assert sum(parameter.numel() for parameter in model.parameters()) > 100_000
