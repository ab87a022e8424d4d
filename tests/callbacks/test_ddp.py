"""Two real processes: the work is shared out over the ranks, and nothing about the training changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure import SecretTree, extract, measure_exposure
from lightning_exposure.privacy import audit
from lightning_exposure.walks import score
from tests.callbacks.audit_setups import PINS, SOME
from tests.callbacks.setups import BOTH, CHARS, Model

ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, devices: int, callbacks: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    script = [sys.executable, "-m", "tests.callbacks.ddp_script", str(folder), str(devices), callbacks]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)


def run(folder: Path, devices: int, callbacks: bool) -> list[dict[str, Any]]:
    done = start(folder, devices, "yes" if callbacks else "no")
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(devices)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ddp")
    return {"with": run(folder / "with", 2, True), "without": run(folder / "without", 2, False)}


def test_both_ranks_have_all_results(runs: dict[str, list[dict[str, Any]]]) -> None:
    first, second = runs["with"]
    assert first["bits"] == second["bits"]
    assert len(first["bits"]) == 3
    assert first["texts"][0] == list(BOTH.texts)
    assert first["extractions"] == second["extractions"]


def test_results_equal_those_of_one_process(runs: dict[str, list[dict[str, Any]]]) -> None:
    model = Model()
    model.load_state_dict(runs["with"][0]["weights"])
    for format, canaries in BOTH.by_format().items():
        tree = SecretTree(model, format, CHARS)
        texts, arguments = [canary.text for canary in canaries], runs["with"][0]["arguments"][-1]
        assert not arguments["cut"]
        arguments = {name: value for name, value in arguments.items() if name != "cut"}
        alone = {e.secret: e.bits for e in measure_exposure(tree, texts, **arguments)}
        shared = dict(zip(runs["with"][0]["texts"][-1], runs["with"][0]["bits"][-1], strict=True))
        assert {text: shared[text] for text in alone} == alone
        candidates = extract(tree, top_k=len(canaries)).candidates
        assert [c["text"] for c in runs["with"][0]["extractions"][format.name]] == [c.text for c in candidates]


def test_weights_are_bit_for_bit_the_same_with_and_without(runs: dict[str, list[dict[str, Any]]]) -> None:
    for rank in range(2):
        with_callbacks, without = runs["with"][rank]["weights"], runs["without"][rank]["weights"]
        assert all(torch.equal(with_callbacks[name], without[name]) for name in without)


def test_the_first_process_decides_for_all_what_is_cut(tmp_path: Path) -> None:
    done = start(tmp_path / "slow", 2, "slow")
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / "slow" / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert [how["cut"] for how in first["arguments"]] == [True, True, False]
    assert first["arguments"] == second["arguments"]
    assert first["bits"] == second["bits"]
    assert done.stderr.count("a measurement in full is expected to take") == 1


def test_a_measurement_that_fails_in_one_process_stops_them_all(tmp_path: Path) -> None:
    # Without the error handed around, the first process would wait for the second until the test's time is up.
    done = start(tmp_path / "broken", 2, "broken")
    assert done.returncode != 0
    assert done.stderr.count("ModelError: the model returned NaN") >= 2, done.stderr[-3000:]
    assert not list((tmp_path / "broken").glob("rank*.pt"))


@pytest.mark.slow
def test_an_audit_in_two_processes_is_that_of_one(tmp_path: Path) -> None:
    done = start(tmp_path / "audit", 2, "audit")
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (torch.load(tmp_path / "audit" / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert first["result"] == second["result"]
    assert first["scores"] == second["scores"]
    assert first["looks"] == second["looks"] == 3
    assert first["logged"]["audit/epsilon_lower"] == second["logged"]["audit/epsilon_lower"]
    model = Model()
    model.load_state_dict(first["weights"])
    bits = score(SecretTree(model, PINS, CHARS), [canary.text for canary in SOME]).costs.tolist()
    fell = {c.id: first["before"][c.id] - cost for c, cost in zip(SOME, bits, strict=True)}
    assert first["scores"] == pytest.approx(fell)
    sides = [[fell[c.id] for c in SOME if c.held_out is out] for out in (False, True)]
    # Three looks before the end: the last one has half of the error.
    assert first["result"] == audit(*sides, delta=1e-5, confidence=0.975).to_dict()
