"""The runner "ray": a real cluster of two workers on this machine gives the very table of the runner "local"."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A cluster that somebody else has started, with a token of its own: what to have in the environment to join it."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "made-up-for-the-cluster-of-a-test"}
    toy_log = {toy_study.LOG: str(tmp_path / "log.txt")}
    environment = {**os.environ, **token, **toy_log, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    options = ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    with (tmp_path / "head.txt").open("w") as said:
        head = subprocess.Popen([*command, *options], env=environment, stdout=said, stderr=said)
    try:
        while "will now block" not in (tmp_path / "head.txt").read_text():
            assert head.poll() is None, (tmp_path / "head.txt").read_text()
            time.sleep(0.2)
        yield {**environment, "ADDRESS": f"127.0.0.1:{port}"}
    finally:
        head.terminate()
        head.wait()


def test_a_cluster_that_runs_already_is_joined_and_left_running(tmp_path: Path, cluster: dict[str, str]) -> None:
    study = [
        sys.executable,
        "-m",
        "lightning_exposure.cli",
        "--import",
        toy_study.__file__,
        "study",
        "toy",
        "--scale=tiny",
    ]
    for name, options in (("local", ["--workers=0"]), ("ray", ["--runner=ray", f"--ray_address={cluster['ADDRESS']}"])):
        done = subprocess.run(
            [*study, *options, f"--out={tmp_path / name}"], env=cluster, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "ray" / "table.csv").read_bytes() == (tmp_path / "local" / "table.csv").read_bytes()
    host, _, port = cluster["ADDRESS"].partition(":")
    socket.create_connection((host, int(port)), timeout=60).close()  # it is not ours to end
