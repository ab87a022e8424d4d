"""The benchmark of private training runs, at a size that takes no time. Nothing here looks at how fast it was."""

from __future__ import annotations

import math

import pytest

from benchmarks.private_training import Setting, benchmark_private_training

TINY = Setting(vocabulary=7, units=8, recurrent_layers=1, transformer_layers=1, heads=2, time=3, batch=4)


def test_every_way_takes_its_steps() -> None:
    rows = benchmark_private_training(TINY, repeats=1, slow_repeats=1, memory=False)
    assert len(rows) == len({row.what for row in rows}) == 16
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [row.what.partition(":")[0] for row in rows] == ["LSTM"] * 5 + ["GRU"] * 5 + ["Transformer"] * 6
    assert sum(row.target is not None for row in rows) == 3 + 3 + 3


def test_the_cost_of_the_proof_is_measured() -> None:
    pytest.importorskip("peft")
    from benchmarks.proof_cost import Gpt, benchmark_proof_cost

    sizes = Gpt(vocabulary=50, units=16, layers=1, heads=2, time=8, batch=4, steps=3)
    rows = benchmark_proof_cost(sizes, repeats=1, memory=False)
    assert len(rows) == 2
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
