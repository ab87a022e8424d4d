"""What a command is told to write takes the place of nothing else, and is refused before anything is measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulated_releases import canaries, memorizing, prose
from lightning_exposure import CanarySet
from lightning_exposure.report.limits.check import CheckResult, is_junit
from tests.cli.conftest import Run

NEVER_READ = "no text in it"
"""An empty text is refused when it is read: an error about a file to write that comes instead comes before."""


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    drawn = canaries(60)
    drawn.save(tmp_path / "canaries.json")
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(text)}\n" for text in memorizing(drawn, 0)))
    (tmp_path / "train.txt").write_text("\n".join(prose(np.random.default_rng(1), 40)))
    return ["--texts", f"{tmp_path}/texts.jsonl", "--canaries", f"{tmp_path}/canaries.json", "--scorers", "ngram"]


@pytest.fixture
def unmeasured(tmp_path: Path, given: list[str]) -> list[str]:
    """The same, with texts that nothing can be measured of: any other error is from before."""
    (tmp_path / "empty.txt").write_text("\n")
    return [*given, "--texts", f"{tmp_path}/empty.txt", "--train", f"{tmp_path}/train.txt"]


def test_no_input_is_overwritten(run: Run, unmeasured: list[str], tmp_path: Path) -> None:
    before = (tmp_path / "canaries.json").read_bytes()
    os.link(tmp_path / "canaries.json", tmp_path / "again.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "canaries.json")
    for name in ("canaries.json", "again.json", "link.json"):
        done = run("synthetic", *unmeasured, "--out", tmp_path / name)
        assert done.code == 2
        assert f"--out is '{tmp_path / name}', which is the file of --canaries" in done.err
    assert (tmp_path / "canaries.json").read_bytes() == before
    assert len(CanarySet.load(tmp_path / "canaries.json")) == 60
    done = run("synthetic", *unmeasured, "--out", tmp_path / "train.txt")
    assert "which is the file of --train" in done.err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("other.json", '{"version": 1, "canaries": []}'),
        ("other.json", "not even JSON"),
        ("other.json", '["epsilon_lower", "assumption", "scorers", "canaries"]'),
        ("other.html", "<!DOCTYPE html><title>Generated texts: a page of mine</title>"),
        ("notes.HTML", "notes"),
        ("there/report.html", "notes"),
    ],
)
def test_what_others_wrote_is_not_overwritten(
    run: Run, unmeasured: list[str], tmp_path: Path, name: str, content: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    out = path.parent if name.startswith("there") else path
    done = run("synthetic", *unmeasured, "--out", out)
    assert done.code == 2
    assert f"--out is '{path}'; expected a new file, or an earlier " in done.err
    assert path.read_text() == content


@pytest.mark.parametrize("name", ["x.csv", "t.txt", "x", "runs/v1.2"])
def test_an_ending_that_says_nothing_is_refused(run: Run, unmeasured: list[str], tmp_path: Path, name: str) -> None:
    if name == "t.txt":
        (tmp_path / name).write_text("there already")
    done = run("synthetic", *unmeasured, "--out", tmp_path / name)
    assert done.code == 2
    assert f"--out is '{tmp_path / name}'; expected a page that ends in .html, JSON that ends in .json" in done.err
    assert not (tmp_path / name).is_dir()


def test_a_place_that_cannot_be_written_is_refused(run: Run, unmeasured: list[str], tmp_path: Path) -> None:
    done = run("synthetic", *unmeasured, "--out", tmp_path / "train.txt" / "deep" / "x.json")
    assert "a file in a directory that can be written into, and " in done.err
    (tmp_path / "directory.json").mkdir()
    pytest.importorskip("jinja2")
    assert NEVER_READ in run("synthetic", *unmeasured, "--out", tmp_path / "directory.json").err


def test_an_earlier_result_may_be_replaced(run: Run, given: list[str], tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    (tmp_path / "there").mkdir()
    (tmp_path / "empty.json").touch()
    for out in ("a.json", "B.JSON", "page.htm", "there", "empty.json"):
        for _ in range(2):
            done = run("synthetic", *given, "--out", tmp_path / out)
            assert done.code == 0, done.err
    for name in ("a.json", "B.JSON", "empty.json"):
        assert "epsilon_lower" in json.loads((tmp_path / name).read_text())
    assert (tmp_path / "there" / "report.html").is_file()


def test_a_scan_overwrites_nothing_either(run: Run, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("my pin is 1234\n")
    before = {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    scan = ["scan", tmp_path / "notes.json", "--model", run_dir, "--format=my pin is ####"]
    for out, message in [
        (tmp_path / "notes.json", "which is the file of TEXT_OR_MAILBOX"),
        (run_dir / "canaries.json", "expected a new file, or an earlier result in JSON"),
        (run_dir / "exposure.json", "expected a new file, or an earlier result in JSON"),
        (tmp_path / "found.csv", "expected a page that ends in .html"),
    ]:
        done = run(*scan, "--out", out)
        assert done.code == 2
        assert f"--out is '{out}'" in done.err
        assert message in done.err
    if (run_dir / "report.html").exists():  # the page of the run is no page of a scan
        assert run(*scan, "--out", run_dir).code == 2
    assert {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()} == before
    for _ in range(2):
        assert run(*scan, "--limit=1", "--out", tmp_path / "found.json").code == 0


def test_a_check_overwrites_nothing_either(run: Run, run_dir: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    foreign = tmp_path / "pytest.xml"
    foreign.write_text('<testsuites name="pytest tests"/>')
    model = ["check", run_dir / "model.ckpt", "--canaries", run_dir / "canaries.json", "--max_exposure", "1"]
    for changes, message in [
        (["--junit", run_dir / "canaries.json"], "which is the file of --canaries"),
        (["--junit", run_dir / "model.ckpt"], "which is the file of RUN_OR_MODEL"),
        (["--junit", run_dir / "exposure.json"], "expected a new file, or an earlier result"),
        (["--junit", foreign], "expected a new file, or an earlier result"),
        (["--junit", tmp_path], "expected a file and not a directory"),
        (["--summary", run_dir / "canaries.json"], "which is the file of --canaries"),
        (["--summary", run_dir / "exposure.json"], "expected a text to add to"),
        (["--summary", tmp_path / "one", "--junit", tmp_path / "one"], "--summary is the file of --junit"),
        (["--secret", f"@{foreign}", "--summary", foreign], "which is the file of --secret"),
    ]:
        done = run(*model, *changes)
        assert done.code == 2
        assert message in done.err
    assert {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()} == before


def test_a_report_overwrites_no_page_of_others(run: Run, run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    (tmp_path / "page.html").write_text("<title>Mine</title>")
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("page.html", "notes.txt"):
        done = run("report", run_dir, "--path", tmp_path / name)
        assert done.code == 2
        assert f"--path is '{tmp_path / name}'; expected " in done.err
    for _ in range(2):
        assert run("report", run_dir, "--path", tmp_path / "new.html").code == 0


def test_canaries_in_a_directory_are_asked_for_by_their_file(run: Run, run_dir: Path) -> None:
    done = run("measure", "--model", run_dir, "--canaries", run_dir)
    assert done.code == 2
    assert f"{run_dir} is a directory; expected a file that save() wrote. Name the file in it." in done.err


def test_a_junit_file_of_ours_is_known() -> None:
    assert is_junit(CheckResult("model", "within", "it is", {}, 0.95, []).to_junit().encode())
    assert not is_junit(b"")
    assert not is_junit(b"{}")
