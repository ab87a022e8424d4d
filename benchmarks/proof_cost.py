"""What the proof of a private training run costs: the same steps of a GPT-2 with and without it, in time and memory."""

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
from lightning_exposure.privacy import PoissonLoader, per_example_loss

FIRST = 3


@dataclass(frozen=True)
class Gpt:
    """Sizes of the model, of its batches and of the run: 109 million parameters, with these."""

    vocabulary: int = 30_522
    units: int = 768
    layers: int = 12
    heads: int = 12
    time: int = 64
    batch: int = 8
    steps: int = 8
    lora: bool = False

    def module(self) -> L.LightningModule:
        torch.manual_seed(0)
        return _Module(self)

    def loader(self) -> PoissonLoader:
        generator = torch.Generator().manual_seed(0)
        data = torch.randint(self.vocabulary, (self.batch * self.steps, self.time), generator=generator)
        return PoissonLoader(DataLoader(TensorDataset(data), batch_size=self.batch))


class _Module(L.LightningModule):
    def __init__(self, sizes: Gpt) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=sizes.vocabulary,
            n_positions=sizes.time,
            n_embd=sizes.units,
            n_layer=sizes.layers,
            n_head=sizes.heads,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.model: nn.Module = GPT2LMHeadModel(config)
        if sizes.lora:
            from peft import LoraConfig, get_peft_model

            self.model = get_peft_model(self.model, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        (tokens,) = batch
        positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
        return per_example_loss(self.model(input_ids=tokens, position_ids=positions).logits, tokens)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([value for value in self.parameters() if value.requires_grad], lr=1e-4)


class _Clock(L.Callback):
    """The processor's time of a training run, without what comes before it."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.begin = time.process_time()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.seconds = time.process_time() - self.begin


def benchmark_proof_cost(sizes: Gpt | None = None, *, repeats: int = 3, memory: bool = True) -> list[Row]:
    """A short run with the proof against one without it, of all weights and of LoRA.

    Args:
        sizes: Of the model.
        repeats: How often each is timed; the medians are compared.
        memory: Whether to measure the peak of memory too, each in a process of its own.
    """
    base = sizes or Gpt()
    rows = []
    for lora in (False, True):
        chosen = Gpt(**{**vars(base), "lora": lora})
        seconds = {verify: [train(chosen, verify) for _ in range(repeats)] for verify in (0, FIRST)}
        plain, proven = (statistics.median(seconds[verify]) for verify in (0, FIRST))
        what = f"GPT-2, {'LoRA' if lora else 'all weights'}: {chosen.steps} private steps with the proof"
        beside = f"{proven:.1f} s against {plain:.1f} s of processor time"
        rows.append(Row(f"{what}, time", proven / plain, "x", Target("below", 1.3), beside))
        if memory:
            peaks = [peak_memory_of(train, chosen, verify) for verify in (0, FIRST)]
            added = [(peak.after - peak.before) / GIB for peak in peaks]
            beside = f"{added[1]:.2f} GiB against {added[0]:.2f} GiB, libraries not counted"
            rows.append(Row(f"{what}, memory", added[1] / added[0], "x", Target("below", 1.1), beside))
    return rows


def train(sizes: Gpt, verify: int) -> float:
    """Make the steps, and give the processor time."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    clock = _Clock()
    callback = DifferentialPrivacy(
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        delta=1e-5,
        accountant="rdp",
        seed=0,
        verify_steps=verify,
        verbose=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        L.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[clock, callback],
        ).fit(sizes.module(), sizes.loader())
    return clock.seconds
