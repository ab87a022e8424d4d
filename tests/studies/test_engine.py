"""The engine: the same table whoever trains what first, rows that survive anything, and cells that fail alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from lightning_exposure.errors import ArgumentError, ManifestError
from lightning_exposure.studies import StudyProgress, run_study
from lightning_exposure.studies._directory import JOURNAL, LOCK, MANIFEST
from lightning_exposure.studies.study import STUDIES
from tests.studies import toy_study

ROOT = Path(__file__).resolve().parents[2]
TEXT = "some text"


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: Any) -> Path:
    path = tmp_path / "log.txt"
    monkeypatch.setenv(toy_study.LOG, str(path))
    return path


def trainings(log: Path) -> list[str]:
    return [" ".join(line.split()[:2]) for line in log.read_text().splitlines()] if log.exists() else []


def toy(directory: Path, **changes: Any) -> bytes:
    given = {"scale": "tiny", "text": TEXT, "workers": 0, **changes}
    run_study(given.pop("name", "toy"), directory, **given)
    return (directory / "table.csv").read_bytes()


# ---- the table --------------------------------------------------------------------------------------------------


def test_a_table_has_every_cell_in_the_order_of_the_grid(tmp_path: Path) -> None:
    lines = toy(tmp_path / "a").decode().splitlines()
    assert lines[0] == "size,seed,loss,found,letters,error"
    assert [line.split(",")[:2] for line in lines[1:]] == [[s, i] for s in "123" for i in "01"]
    assert {line.split(",")[4] for line in lines[1:]} == {str(len(TEXT))}


def test_processes_write_the_same_bytes_as_one(tmp_path: Path, log: Path) -> None:
    alone = toy(tmp_path / "alone")
    assert toy(tmp_path / "three", workers=3) == alone
    assert Counter(trainings(log)) == Counter({f"{size} {seed}": 2 for size in (1, 2, 3) for seed in (0, 1)})
    assert len({line.split()[2] for line in log.read_text().splitlines()}) == 4  # this process and three others
    for name in ("summary.csv", "study.json"):
        assert (tmp_path / "alone" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()


def test_the_order_of_rows_on_disk_does_not_matter(tmp_path: Path, log: Path) -> None:
    before = toy(tmp_path / "a")
    journal = tmp_path / "a" / JOURNAL
    journal.write_text("".join(reversed(journal.read_text().splitlines(keepends=True))))
    assert toy(tmp_path / "a") == before
    assert len(trainings(log)) == 6


def test_a_cell_may_have_several_rows(tmp_path: Path) -> None:
    lines = toy(tmp_path / "a", name="toy-epochs").decode().splitlines()
    assert lines[0] == "seed,epoch,loss,error"
    assert [line.split(",")[:2] for line in lines[1:]] == [[i, e] for i in "01" for e in "123"]
    summary = (tmp_path / "a" / "summary.csv").read_text().splitlines()
    assert summary[0] == "epoch,trainings,loss,loss_low,loss_high"
    assert len(summary) == 4


def test_more_seeds_add_cells_to_those_there_are(tmp_path: Path, log: Path) -> None:
    toy(tmp_path / "a", seeds=1)
    more = toy(tmp_path / "a", seeds=3)
    assert len(trainings(log)) == 9
    assert toy(tmp_path / "b", seeds=3) == more


def test_what_is_somebody_elses_is_left_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match=r"--out is .*mine'; expected an empty directory .* holds 'notes.txt'"):
        toy(mine)
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


def test_rows_with_other_columns_are_not_mixed_with_these(tmp_path: Path) -> None:
    toy(tmp_path / "a")
    manifest = tmp_path / "a" / MANIFEST
    content = json.loads(manifest.read_text())
    content["columns"].remove("letters")
    manifest.write_text(json.dumps(content))
    with pytest.raises(ArgumentError, match=r"columns is .*'letters'.*with which the directory was begun"):
        toy(tmp_path / "a")


def test_the_papers_scale_is_not_trained_on_a_text_that_is_too_short(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"--text is '9 characters'; expected a text of 5,000,000 .* Penn Treebank"):
        run_study("selectivity", tmp_path / "a", scale="paper", text=TEXT)
    assert not (tmp_path / "a").exists()


# ---- what survives ----------------------------------------------------------------------------------------------


def test_nothing_is_trained_twice(tmp_path: Path, log: Path) -> None:
    first = toy(tmp_path / "a")
    seen: list[StudyProgress] = []
    assert toy(tmp_path / "a", watch=seen.append) == first
    assert [(now.done, now.total) for now in seen] == [(6, 6)]
    assert len(trainings(log)) == 6


@pytest.mark.parametrize("kept", [0, 1, 30, 400])
def test_a_row_that_was_half_written_is_trained_again(tmp_path: Path, log: Path, kept: int) -> None:
    whole = toy(tmp_path / "a")
    journal = tmp_path / "a" / JOURNAL
    journal.write_bytes(journal.read_bytes()[:kept])
    done = journal.read_bytes().count(b"\n")
    (tmp_path / "a" / "table.csv").unlink()
    assert toy(tmp_path / "a") == whole
    assert len(trainings(log)) == 6 + 6 - done
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_broken_row_in_the_middle_is_named(tmp_path: Path) -> None:
    toy(tmp_path / "a")
    journal = tmp_path / "a" / JOURNAL
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], lines[1][:10], *lines[2:]]) + "\n")
    with pytest.raises(ManifestError, match=r"rows.jsonl, line 2 is .*; expected a row in JSON"):
        toy(tmp_path / "a")


def start(directory: Path, log: Path, pause: float) -> subprocess.Popen[bytes]:
    """The engine in a process of its own, with two workers."""
    code = (
        "import sys\nfrom tests.studies import toy_study\n"
        "if __name__ == '__main__':\n    from lightning_exposure.studies import run_study\n"
        "    run_study('toy', sys.argv[1], scale='tiny', text='some text', workers=2)\n"
    )
    script = directory.parent / "script.py"
    script.write_text(code)
    environment = {**os.environ, toy_study.LOG: str(log), toy_study.PAUSE: str(pause), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, str(script), str(directory)], cwd=ROOT, env=environment)


def until(condition: Any, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended, and that nobody has asked about yet, is still there for the system.
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
def test_kill_9_loses_no_row_and_leaves_no_process(tmp_path: Path, log: Path) -> None:
    whole = toy(tmp_path / "whole")
    log.unlink()
    process = start(tmp_path / "a", log, pause=0.5)
    journal = tmp_path / "a" / JOURNAL
    until(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2)
    with pytest.raises(ArgumentError, match=r"--out is .*; expected a directory that no other process is working in"):
        toy(tmp_path / "a")
    process.kill()
    assert process.wait() == -signal.SIGKILL
    workers = {int(line.split()[2]) for line in log.read_text().splitlines()}
    assert len(workers) == 2
    until(lambda: not any(map(alive, workers)))
    done = journal.read_bytes().count(b"\n")
    assert 2 <= done < 6
    log.unlink()
    assert toy(tmp_path / "a") == whole  # the lock went with its process
    assert len(trainings(log)) == 6 - done


def test_a_directory_is_for_one_process(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (
        FileLock(tmp_path / "a" / LOCK),
        pytest.raises(ArgumentError, match=r"--out is .*; expected a directory that no other process is working in"),
    ):
        toy(tmp_path / "a")
    toy(tmp_path / "a")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"scale": "cpu"}, "--scale is 'cpu'; expected 'tiny', with which the directory was begun"),
        ({"name": "toy-epochs"}, "study is 'toy-epochs'; expected 'toy'"),
        ({"text": "another text"}, "--text is "),
    ],
)
def test_other_settings_do_not_mix_with_these_rows(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    before = toy(tmp_path / "a")
    with pytest.raises(ArgumentError) as found:
        toy(tmp_path / "a", **changes)
    assert str(found.value).startswith(name)
    assert (tmp_path / "a" / "table.csv").read_bytes() == before


def test_settings_that_changed_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    toy(tmp_path / "a")
    monkeypatch.setitem(toy_study.SHARED, "characters", 5)
    with pytest.raises(ArgumentError, match=r"settings.characters is 5; expected 4, with which"):
        toy(tmp_path / "a")


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("mine")
    with pytest.raises(ArgumentError, match=r"expected an empty directory or one of this study, but it holds"):
        toy(tmp_path)
    assert (tmp_path / "table.csv").read_text() == "mine"


# ---- what fails -------------------------------------------------------------------------------------------------


def test_a_cell_that_fails_is_a_row_that_says_why(tmp_path: Path) -> None:
    result = run_study("toy-failing", tmp_path / "a", scale="tiny", text=TEXT, workers=2)
    assert [row.get("loss") for row in result.rows] == [0.5, None, None, None, None, 0.5]
    reasons = {row["kind"]: row["error"] for row in result.failed}
    assert reasons["raises"] == "ValueError: the loss is a potato"
    assert "was killed by signal 9 (SIGKILL)" in str(reasons["dies"])
    assert str(reasons["diverges"]).startswith("CellError: loss is nan; expected a finite number")
    assert str(reasons["forgets"]).startswith("CellError: row is ['los']; expected the columns 'loss'")
    assert len(result.summary) == 2
    again = run_study("toy-failing", tmp_path / "a", scale="tiny", text=TEXT, workers=1)  # and they are tried again
    assert [row.get("error") for row in again.rows] == [row.get("error") for row in result.rows]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "tou"}, "NAME is 'tou'; expected one of"),
        ({"scale": "huge"}, "--scale is 'huge'; expected one of 'tiny', 'cpu'"),
        ({"seeds": 0}, "--seeds is 0; expected an integer of at least 1"),
        ({"workers": -1}, "--workers is -1; expected an integer of at least 0"),
        ({"runner": "slurm"}, "--runner is 'slurm'; expected one of 'local', 'ray'"),
        ({"runner": "ray", "workers": 0}, "--workers is 0; expected an integer of at least 1"),
        (
            {"name": "toy-ddp"},
            "trainer.strategy is 'ddp'; expected one of 'auto', 'single_device', None, because",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError) as found:
        toy(tmp_path / "a", **changes)
    assert str(found.value).startswith(message)
    assert not (tmp_path / "a").exists()


def test_seeds_come_from_settings_and_not_from_places() -> None:
    cells = STUDIES.get("toy").cells("toy", "tiny", text=TEXT)
    assert len({cell.random_seed for cell in cells}) == len(cells)
    assert [cell.secret_seed for cell in cells] == [cells[0].secret_seed, cells[1].secret_seed] * 3
    more = STUDIES.get("toy").cells("toy", "tiny", seeds=4)
    assert {cell.key for cell in cells} < {cell.key for cell in more}
