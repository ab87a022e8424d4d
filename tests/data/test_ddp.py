"""Two processes that train together: each canary as often as asked, over both of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.data.helpers import WANTED

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
KINDS = ["shuffled", "drop last", "weighted", "distributed", "batches", "by hand", "stream"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: Any) -> list[Any]:
    """What the two processes saw, for every kind of loader: one start for all, because starting takes longest."""
    folder = tmp_path_factory.mktemp("ddp")
    script = Path(__file__).with_name("ddp_script.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder), *KINDS],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def together(*counts: dict[str, int]) -> dict[str, int]:
    return {id_: sum(count[id_] for count in counts) for id_ in WANTED}


@pytest.mark.parametrize("kind", KINDS)
def test_each_canary_is_in_one_process_only(kind: str, ranks: list[Any]) -> None:
    first = [rank[kind][0] for rank in ranks]
    for epoch in "01":
        assert together(*(rank["seen"][epoch][1] for rank in first)) == WANTED
        assert [rank["local"][epoch] for rank in first] == [rank["seen"][epoch][1] for rank in first]
        assert all(rank["gathered"][epoch] == WANTED for rank in first)
        # As many steps in both, or they would wait for each other forever.
        assert first[0]["batches"][epoch] == first[1]["batches"][epoch]


@pytest.mark.parametrize("kind", ["shuffled", "distributed", "batches", "by hand", "stream"])
def test_the_data_is_split_as_it_would_be_without_canaries(kind: str, ranks: list[Any]) -> None:
    for epoch in "01":
        numbers = Counter(number for rank in ranks for number in rank[kind][0]["seen"][epoch][0])
        assert set(numbers) == set(range(52 if kind in ("by hand", "stream") else 53))
        # An example is repeated where one process has one less, for the data and for the canaries; with batches of
        # the user's own, a whole batch may be.
        assert numbers.total() - len(numbers) <= (4 if kind == "batches" else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_in_the_middle_of_an_epoch(kind: str, ranks: list[Any]) -> None:
    second = [rank[kind][1] for rank in ranks]
    assert all(rank["gathered"] == {"0": WANTED, "1": WANTED} for rank in second)
    assert all(rank["batches"]["0"] == 0 for rank in second)
    assert all(rank["batches"]["1"] == ranks[0][kind][0]["batches"]["1"] - 3 for rank in second)
