"""`lightning-exposure study`: what is listed, shown, run and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.studies import STUDIES
from tests.cli.conftest import Run
from tests.studies import toy_study


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(toy_study.LOG, str(tmp_path / "log.txt"))


def test_list_has_a_line_for_each_with_its_name_first(run: Run) -> None:
    result = run("study", "list")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == list(STUDIES.names())


def test_show_says_what_is_trained_and_what_it_costs(run: Run) -> None:
    result = run("study", "show", "capacity")
    assert result.code == 0
    for words in ("Table 2", "--scale tiny", "--scale cpu", "--scale paper", "units: 50, 100, 150, 200, 250", "cost: "):
        assert words in result.out
    assert "350 trainings (35 settings, 10 seeds each)" in result.out
    assert "32.5" in result.out  # the paper's own


def test_a_run_says_its_means_and_leaves_its_files(run: Run, tmp_path: Path) -> None:
    result = run("study", "toy", "--scale=tiny", "--workers=0", f"--out={tmp_path / 'a'}")
    assert result.code == 0
    files = {path.name for path in (tmp_path / "a").iterdir()}
    assert files - {".lock"} == {"table.csv", "summary.csv", "rows.jsonl", "study.json"}
    assert result.err.count("seed=") == 6
    assert "left" in result.err
    again = run("study", "toy", "--scale=tiny", "--workers=0", f"--out={tmp_path / 'a'}")
    assert again.out == result.out
    assert "6 of 6 were there already" in again.err


def test_a_failed_cell_shows_in_the_exit_code(run: Run, tmp_path: Path) -> None:
    result = run("study", "toy-failing", "--scale=tiny", "--workers=1", f"--out={tmp_path / 'a'}")
    assert result.code == 1
    assert "failed: kind=raises, seed=0: ValueError: the loss is a potato" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capacty"], "NAME is 'capacty'; expected one of"),
        (["show"], "show is given without a study; expected one of"),
        (["show", "nothing"], "NAME is 'nothing'; expected one of"),
        (["toy", "extra"], "unrecognized argument 'extra'"),
        (["list", "extra"], "unrecognized argument 'extra'"),
        (["toy", "--ray_address", "auto"], "--ray_address is 'auto'; expected nothing with --runner 'local'"),
        (["toy", "--scale", "tiny", "--out", __file__], "expected a directory, or a path where one can be made"),
        (["toy", "--scale", "large"], "--scale is 'large'; expected one of 'tiny', 'cpu'"),
        (["toy", "--workers", "-1"], "--workers is -1; expected an integer of at least 0"),
        (["toy", "--text", "no such file"], "--text is 'no such file', which cannot be read"),
        (
            ["page", "toy", "--out", "nowhere"],
            "--out is 'nowhere', which has no table.csv; expected a study that is done",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: Any, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("study", *arguments)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
