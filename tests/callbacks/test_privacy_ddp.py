"""Two real processes train privately together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from lightning_exposure.privacy import epsilon, generators
from lightning_exposure.privacy.steps.poisson import draw
from tests.callbacks.privacy_setups import DATA, OPTIMIZERS, RECORDS, Module, as_opacus_has_it, loss_of, same

ROOT = Path(__file__).resolve().parents[2]
STEPS = 2  # an epoch of 60 records in two processes with batches of 15


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("private_ddp")
    script = [sys.executable, "-m", "tests.callbacks.privacy_ddp_script", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("part", ["ordinary", "empty", "canaries"])
def test_both_processes_hold_the_same_weights(ranks: list[dict[str, Any]], part: str) -> None:
    first, second = (rank[part]["weights"] for rank in ranks)
    assert same(first, second)
    assert all(torch.isfinite(value).all() for value in first.values())


def test_the_accountant_knows_the_batch_of_all_processes(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["ordinary"]["history"] == [[0.7, 1 / STEPS, 3 * STEPS]]
        # Every process draws from its half of the records.
        assert len(rank["ordinary"]["seen"]) == 3 * STEPS
        assert 5 < sum(rank["ordinary"]["seen"]) / (3 * STEPS) < 25
    assert ranks[0]["ordinary"]["seen"] != ranks[1]["ordinary"]["seen"]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")  # Opacus 1.5
def test_the_weights_are_those_of_one_process_with_the_records_of_both(ranks: list[dict[str, Any]]) -> None:
    raw, parameters = as_opacus_has_it(Module("lstm").net)
    wrapped = GradSampleModule(raw)
    private = DPOptimizer(
        OPTIMIZERS["sgd"](list(parameters.values())),
        noise_multiplier=0.7,
        max_grad_norm=0.5,
        expected_batch_size=RECORDS / STEPS,
    )
    for epoch in range(3):
        both = [generators(3, rank=rank, steps=epoch * STEPS) for rank in range(2)]
        private.generator = both[0].noise
        for _ in range(STEPS):
            drawn = [
                2 * place + rank for rank in range(2) for place in draw(RECORDS // 2, 1 / STEPS, both[rank].sampling)
            ]
            private.zero_grad()
            loss_of(wrapped, DATA[drawn]).backward()
            private.step()
    for name, value in parameters.items():
        torch.testing.assert_close(ranks[0]["ordinary"]["weights"][f"net.{name}"], value.detach(), rtol=1e-5, atol=1e-5)


def test_a_run_resumed_between_epochs_is_bit_for_bit_the_same(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert same(rank["ordinary"]["weights"], rank["ordinary"]["resumed"])
        assert rank["ordinary"]["history"] == rank["ordinary"]["history again"]


def test_an_empty_batch_in_one_process_keeps_nobody_waiting(ranks: list[dict[str, Any]]) -> None:
    assert [rank["empty"]["history"] for rank in ranks] == [[[0.7, 1 / 2, 16]]] * 2


def test_targets_budgets_and_canaries(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["canaries"] for rank in ranks)
    # 73 records in two processes with batches of 8: five steps.
    ((noise, rate, steps),) = first["history"]
    assert (rate, steps) == (1 / 5, 15)
    assert first["history"] == second["history"]
    assert 0.97 * 3.0 < first["epsilon"] == epsilon([(noise, rate, steps)], 1e-5, "rdp") <= 3.0
    assert first["all"] == second["all"]
    for name in first["all"]:
        assert first["mine"][name] + second["mine"][name] == first["all"][name]
    for rank in (first, second):
        assert sum(rank["mine"].values()) == rank["read"]
    assert 15 <= sum(first["all"].values()) <= 70


def test_too_little_noise_is_found_out_by_all(ranks: list[dict[str, Any]]) -> None:
    assert all("noise is not the one that was asked for" in rank["sabotaged"]["error"] for rank in ranks)


def test_two_processes_take_the_step_of_one(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["steps"] for rank in ranks)
    for name, value in first["alone"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        torch.testing.assert_close(first["weights"][name], value, rtol=1e-6, atol=1e-6)
        # What each process can tell about its own sums does not change with what is done to the gradients.
        assert not torch.equal(first["sums"][name], second["sums"][name])
        torch.testing.assert_close(first["sums"][name] + second["sums"][name], first["total"][name])
