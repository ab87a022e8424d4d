"""The benchmark of private training runs, at a size that takes no time. Nothing here looks at how fast it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.private_training import WAYS, Setting, benchmark_private_training
from benchmarks.table import Target

TINY = Setting(vocabulary=7, units=8, recurrent_layers=1, transformer_layers=1, heads=2, time=3, batch=4)


def test_every_way_takes_its_steps() -> None:
    rows = benchmark_private_training(TINY, repeats=1, slow_repeats=1, memory=False)
    assert len(rows) == len({row.what for row in rows}) == 16
    assert [row.what.partition(":")[0] for row in rows] == ["LSTM"] * 5 + ["GRU"] * 5 + ["Transformer"] * 6
    assert sum(row.target is not None for row in rows) == 3 + 3 + 3
    value = {row.what: row.value for row in rows}
    for kind in ("LSTM", "GRU", "Transformer"):
        assert value[f"{kind}: a step, plain PyTorch"] == 1.0, "everything is in units of a plain step"
        ours, theirs = value[f"{kind}: a step, private"], value[f"{kind}: a step, Opacus with hooks"]
        assert value[f"{kind}: a private step of ours, faster than Opacus with hooks"] == pytest.approx(theirs / ours)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_what_is_timed_as_our_kernel_computes_what_pytorch_does(kind: str) -> None:
    models: list[nn.Module] = []

    class Recorded(Setting):
        def model(self, kind: str) -> nn.Module:
            models.append(super().model(kind))
            return models[-1]

    for way in ("plain", "fused"):
        WAYS[kind][way](Recorded(**vars(TINY)), kind)()
    plain, fused = ([parameter.grad for parameter in model.parameters()] for model in models)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-6)


def test_the_cost_of_the_proof_is_measured() -> None:
    pytest.importorskip("peft")
    from benchmarks.proof_cost import Gpt, benchmark_proof_cost

    sizes = Gpt(vocabulary=50, units=16, layers=1, heads=2, time=8, batch=4, steps=3)
    rows = benchmark_proof_cost(sizes, repeats=1, memory=False)
    parts = ("all weights", "LoRA")
    assert [row.what for row in rows] == [f"GPT-2, {part}: 3 private steps with the proof, time" for part in parts]
    assert [(row.unit, row.target) for row in rows] == [("x", Target("below", 1.3))] * 2
