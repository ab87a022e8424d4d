"""The torchmetrics metric is the pure functions with a memory, also over two processes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as multiprocessing
from torch import distributed, tensor

from lightning_exposure.errors import ArgumentError, ScoreError
from lightning_exposure.exposure import Exposure, exposure_by_rank, exposure_by_skew_normal

REFERENCES = torch.from_numpy(np.random.default_rng(0).normal(30.0, 3.0, size=200))
SCORES = tensor([31.0, 20.0, 29.5])


@pytest.mark.parametrize(("method", "function"), [("rank", exposure_by_rank), ("skewnormal", exposure_by_skew_normal)])
def test_it_computes_what_the_function_computes_in_any_number_of_updates(method: str, function: object) -> None:
    metric = Exposure(method)
    metric.update(references=REFERENCES[:50])
    metric.update(SCORES[:1], REFERENCES[50:])
    metric.update(SCORES[1:])
    expected = function(SCORES.double().numpy(), REFERENCES.numpy())  # type: ignore[operator]
    np.testing.assert_allclose(metric.compute().numpy(), expected, rtol=1e-6)


def test_a_reset_forgets() -> None:
    metric = Exposure()
    metric.update(SCORES, REFERENCES)
    metric.reset()
    metric.update(SCORES)
    with pytest.raises(ScoreError, match="references has 0 scores"):
        metric.compute()


def test_a_bad_update_adds_nothing() -> None:
    metric = Exposure()
    metric.update(SCORES, REFERENCES)
    with pytest.raises(ScoreError, match="references has 1 scores that are NaN"):
        metric.update(SCORES, tensor([float("nan")]))
    assert len(metric.compute()) == len(SCORES)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ArgumentError, match="method is 'guess'"):
        Exposure("guess")


def _one_process(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    metric = Exposure()
    # Unequal shares on purpose.
    share = [(SCORES[:2], REFERENCES[:150]), (SCORES[2:], REFERENCES[150:])][rank]
    metric.update(*share)
    torch.save(metric.compute(), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_compute_what_one_would(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(_one_process, args=(port, str(tmp_path)), nprocs=2)
    alone = Exposure()
    alone.update(SCORES, REFERENCES)
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), alone.compute())
