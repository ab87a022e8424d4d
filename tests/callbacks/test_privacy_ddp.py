"""Two real processes train privately together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from lightning_exposure.privacy import AdaptiveClipping, epsilon, generators
from lightning_exposure.privacy.steps.poisson import draw, steps_per_epoch
from tests.callbacks.privacy_setups import DATA, OPTIMIZERS, RECORDS, Module, as_opacus_has_it, loss_of, same
from tests.callbacks.test_privacy_metrics import LIMIT, Resting, norms_one_by_one
from tests.callbacks.test_privacy_users import CAP, OWNERS, USERS

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


def test_norms_are_those_of_the_examples_of_both(ranks: list[dict[str, Any]]) -> None:
    each, expected = norms_one_by_one(Resting()), []
    for rank in range(2):
        coins = generators(3, rank=rank).sampling
        expected += [each[[2 * k + rank for k in draw(RECORDS // 2, 1 / STEPS, coins)]] for _ in range(STEPS)]
    together = torch.cat(expected)
    for rank in ranks:
        assert rank["norms"]["privacy/clipped_share"] == pytest.approx(float((together > LIMIT).float().mean()))
        assert rank["norms"]["privacy/median_norm"] == pytest.approx(np.median(together.numpy()))


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


@pytest.mark.parametrize("data", ["", "few "])
def test_batches_in_parts_are_those_of_whole_ones(ranks: list[dict[str, Any]], data: str) -> None:
    whole, first, second = (
        ranks[rank]["virtual"][data + how] for rank, how in ((0, "whole"), (0, "parts"), (1, "parts"))
    )
    assert same(first["weights"], second["weights"])
    for name, value in whole["weights"].items():
        torch.testing.assert_close(first["weights"][name], value, rtol=2e-6, atol=2e-6)
    assert whole["history"] == first["history"] == second["history"]
    assert first["steps"] == second["steps"] == whole["steps"] == first["history"][0][2]


def test_processes_agree_on_the_number_of_parts(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["virtual"]["parts"] for rank in ranks)
    assert first["passes"] == second["passes"] > 3 * first["steps"]
    # Those that have fewer run more of them that count as nothing.
    assert len(first["seen"]) != len(second["seen"])
    assert first["passes"] >= max(len(first["seen"]), len(second["seen"]))
    for rank in ranks:
        assert max(rank["virtual"]["parts"]["seen"]) <= 4
        assert sum(rank["virtual"]["parts"]["seen"]) == sum(rank["virtual"]["whole"]["seen"])
        # What is logged of an epoch is weighed by examples, and what stands in is not logged.
        assert rank["virtual"]["parts"]["logged"] == pytest.approx(rank["virtual"]["whole"]["logged"], rel=1e-5)


@pytest.mark.parametrize("how", ["whole", "proven", "parts", "few"])
def test_users_are_with_one_process_each(ranks: list[dict[str, Any]], how: str) -> None:
    first, second = (rank["users"][how] for rank in ranks)
    assert same(first["weights"], second["weights"])
    assert all(torch.isfinite(value).all() for value in first["weights"].values())
    assert first["history"] == second["history"]
    owners = [{user for batch in rank["noted"] for user, _ in batch} for rank in (first, second)]
    # An empty draw shows the first record in its place, which may be anybody's.
    assert owners[0] & owners[1] <= {OWNERS[0]}
    for batch in (*first["noted"], *second["noted"]):
        taken = Counter(user for user, _ in batch)
        for user, records in taken.items():
            assert records == min(CAP, OWNERS.count(user)) or batch == [(OWNERS[0], 0)]


def test_users_in_parts_and_with_proof_lead_to_the_same_weights(ranks: list[dict[str, Any]]) -> None:
    whole, proven, parts = (ranks[0]["users"][how] for how in ("whole", "proven", "parts"))
    assert same(whole["weights"], proven["weights"])
    for name, value in whole["weights"].items():
        torch.testing.assert_close(parts["weights"][name], value, rtol=2e-6, atol=2e-6)
    steps = steps_per_epoch(USERS, 4, world_size=2)
    assert whole["history"] == parts["history"] == [[0.7, 1 / steps, 3 * steps]]
    assert ranks[0]["users"]["few"]["history"] == [[0.7, 1 / 2, 16]]


def test_too_little_noise_is_found_out_by_all(ranks: list[dict[str, Any]]) -> None:
    assert all("noise is not the one that was asked for" in rank["sabotaged"]["error"] for rank in ranks)


@pytest.mark.parametrize("data", ["whole", "parts", "few", "resumed"])
def test_a_norm_that_adapts_is_the_same_in_both_bit_for_bit(ranks: list[dict[str, Any]], data: str) -> None:
    first, second = (rank["adaptive"][data] for rank in ranks)
    assert first["norms"] == second["norms"]
    assert len(set(first["norms"])) == 3
    assert same(first["weights"], second["weights"])


def test_a_norm_that_adapts_counts_the_examples_of_both(ranks: list[dict[str, Any]]) -> None:
    """By hand: one noise, of the first process, on the count of all; divided by the batch size of all."""
    whole = ranks[0]["adaptive"]["whole"]
    assert same(whole["weights"], ranks[0]["adaptive"]["resumed"]["weights"])
    assert whole["norms"] == ranks[0]["adaptive"]["resumed"]["norms"] == ranks[0]["adaptive"]["parts"]["norms"]
    tracking = AdaptiveClipping().tracking(0.7, RECORDS / STEPS)
    model, norm = Module("lstm").net, 0.5
    both = [generators(3, rank=rank) for rank in range(2)]
    drawn = [2 * place + rank for rank in range(2) for place in draw(RECORDS // 2, 1 / STEPS, both[rank].sampling)]
    each = [torch.autograd.grad(loss_of(model, DATA[[place]]), list(model.parameters())) for place in drawn]
    within = sum(float(torch.stack([grad.norm() for grad in grads]).norm()) <= norm for grads in each)
    noise = float(torch.randn(1, generator=both[0].noise, dtype=torch.float64))
    expected = tracking.next_norm(norm, within - len(drawn) / 2 + tracking.count_noise * noise)
    assert ranks[0]["adaptive"]["first"] == pytest.approx(expected, rel=1e-6)


def test_processes_draw_from_the_operating_system_apart(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["secure"] for rank in ranks)
    assert same(first["weights"], second["weights"])
    assert first["norm"] == second["norm"]
    assert first["seen"] != second["seen"]
    # One of them draws the noise.
    assert all(kind == "SecureGenerator" and given > 0 for kind, given in first["drawn"])
    assert all(given == 0 for _, given in second["drawn"])


def test_two_processes_take_the_step_of_one(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["steps"] for rank in ranks)
    for name, value in first["alone"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        torch.testing.assert_close(first["weights"][name], value, rtol=1e-6, atol=1e-6)
        # What each process can tell about its own sums does not change with what is done to the gradients.
        assert not torch.equal(first["sums"][name], second["sums"][name])
        torch.testing.assert_close(first["sums"][name] + second["sums"][name], first["total"][name])
