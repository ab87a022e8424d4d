"""The benchmark of private training runs, at a size that takes no time. Nothing here looks at how fast it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks import clipping_loss
from benchmarks.private_training import WAYS, Setting, benchmark_private_training
from benchmarks.private_users import benchmark_private_users, users_of
from benchmarks.private_ways import DESCRIBED, KINDS, benchmark_private_ways
from benchmarks.table import Target
from benchmarks.virtual_batches import Sizes, benchmark_virtual_batches

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


def test_other_ways_to_clip_and_to_draw_are_measured_beside_the_usual() -> None:
    noise, *rows = benchmark_private_ways(TINY, repeats=1, numbers=1000)
    assert noise.unit == "x"
    assert [row.what for row in rows] == [
        f"{kind}: a private step, {way}" for kind in KINDS for way in DESCRIBED.values()
    ]
    assert [row.value for row in rows if row.what.endswith("one norm")] == [1.0, 1.0]


def test_users_are_timed_beside_records() -> None:
    rows = benchmark_private_users(TINY, repeats=1)
    assert [row.what.partition(":")[0] for row in rows] == ["LSTM", "GRU", "Transformer"]
    assert all("3 users with 4 records" in row.what for row in rows)
    assert [(row.unit, row.target) for row in rows] == [("x", Target("below", 2.0))] * 3
    assert users_of(128) == 128


@pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers")
def test_losses_of_ways_to_clip_stand_beside_each_other() -> None:
    options = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1}
    found = clipping_loss.row("lstm", "adaptive", 1.0, 0, **options)
    assert float(found["epsilon"]) == pytest.approx(clipping_loss.EPSILON, rel=0.05)
    table = list(clipping_loss.summary([found, found | {"seed": "1", "loss": "9.0"}]))
    assert len(table) == 2 + len(clipping_loss.MODELS) * len(clipping_loss.WAYS)
    assert sum("9.00)" in line for line in table) == 1
    assert "| lstm | adaptive |  | " in "".join(table)


def test_the_cost_of_the_proof_is_measured() -> None:
    pytest.importorskip("peft")
    from benchmarks.proof_cost import Gpt, benchmark_proof_cost

    sizes = Gpt(vocabulary=50, units=16, layers=1, heads=2, time=8, batch=4, steps=3)
    rows = benchmark_proof_cost(sizes, repeats=1, memory=False)
    parts = ("all weights", "LoRA")
    assert [row.what for row in rows] == [f"GPT-2, {part}: 3 private steps with the proof, time" for part in parts]
    assert [(row.unit, row.target) for row in rows] == [("x", Target("below", 1.3))] * 2


def test_private_lora_is_measured_beside_plain_lora_and_opacus() -> None:
    pytest.importorskip("peft")
    from benchmarks import private_lora

    sizes = private_lora.Sizes(vocabulary=50, units=16, layers=1, heads=2, time=8, batch=4)
    rows = private_lora.benchmark_private_lora(sizes, repeats=1, memory=False)
    assert [row.what for row in rows] == [f"GPT-2, LoRA: a step, {what}" for what in private_lora.DESCRIBED.values()]
    assert rows[0].value == 1.0
    assert [row.unit for row in rows] == ["x"] * 5
    assert [row.target for row in rows if row.target] == [Target("below", 1.5)]


def test_batches_in_parts_are_measured() -> None:
    sizes = Sizes(vocabulary=9, units=8, layers=1, heads=2, time=4, batch=8, part=3, steps=2)
    (row,) = benchmark_virtual_batches(sizes, repeats=1, memory=False)
    assert row.what == "Transformer, 2 private steps of 8 records in parts of 3, time beside whole batches"
    assert row.unit == "x"
