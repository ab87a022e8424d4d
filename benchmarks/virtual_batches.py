"""What a large Poisson batch costs in parts: its memory beside that of the whole batch and of a small one, and time."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.memory import GIB, peak_memory_of
from benchmarks.table import Row, Target
from lightning_exposure import DifferentialPrivacy
from lightning_exposure.modules.transformer import TransformerNetwork
from lightning_exposure.privacy import PoissonLoader


@dataclass(frozen=True)
class Sizes:
    """Of a Transformer, of its batches, and of the parts of those."""

    vocabulary: int = 256
    units: int = 128
    layers: int = 2
    heads: int = 4
    time: int = 64
    batch: int = 256
    part: int = 16
    steps: int = 8


class _Module(L.LightningModule):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = TransformerNetwork(
            sizes.vocabulary,
            hidden_size=sizes.units,
            num_layers=sizes.layers,
            num_heads=sizes.heads,
            max_length=sizes.time,
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        (tokens,) = batch
        return nn.functional.cross_entropy(self.net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def benchmark_virtual_batches(sizes: Sizes | None = None, *, repeats: int = 2, memory: bool = True) -> list[Row]:
    """Private steps with batches in parts, against whole ones, and against batches that are as small as the parts.

    Args:
        sizes: Of the model and its batches.
        repeats: How often each is timed; the medians are compared.
        memory: Whether to measure the peak of memory too, each in a process of its own.
    """
    sizes = sizes or Sizes()
    what = f"Transformer, {sizes.steps} private steps of {sizes.batch} records in parts of {sizes.part}"
    seconds = [
        statistics.median(train(sizes, sizes.batch, part) for _ in range(repeats)) for part in (None, sizes.part)
    ]
    beside = f"{seconds[1]:.1f} s against {seconds[0]:.1f} s of processor time"
    rows = [Row(f"{what}, time beside whole batches", seconds[1] / seconds[0], "x", Target("below", 1.5), beside)]
    if memory:
        ways = ((sizes.batch, None), (sizes.batch, sizes.part), (sizes.part, None))
        peaks = [peak_memory_of(train, sizes, batch, part) for batch, part in ways]
        whole, parts, small = ((peak.after - peak.before) / GIB for peak in peaks)
        beside = f"{parts:.2f} GiB against {whole:.2f} GiB, libraries not counted"
        rows.append(Row(f"{what}, memory beside whole batches", parts / whole, "x", Target("below", 0.25), beside))
        beside = f"{parts:.2f} GiB against {small:.2f} GiB"
        name = f"{what}, memory beside batches of {sizes.part}"
        rows.append(Row(name, parts / small, "x", Target("below", 1.5), beside))
    return rows


def train(sizes: Sizes, batch: int, part: int | None) -> float:
    """Make the steps, and give the processor time."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(sizes.vocabulary, (batch * sizes.steps, sizes.time), generator=generator)
    callback = DifferentialPrivacy(
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        delta=1e-5,
        accountant="rdp",
        max_physical_batch_size=part,
        seed=0,
        verbose=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        )
        begin = time.process_time()
        trainer.fit(_Module(sizes), PoissonLoader(DataLoader(TensorDataset(data), batch_size=batch)))
    return time.process_time() - begin
