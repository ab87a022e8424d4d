"""What a private step of LoRA costs beside a plain one and beside Opacus: the same GPT-2, the same adapters."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.memory import GIB, peak_memory_of
from benchmarks.table import Row, Target
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.steps.optimizer import private_optimizer

NORM, NOISE = 1.0, 1.0
Step = Callable[[], None]


@dataclass(frozen=True)
class Sizes:
    """Of the model, of its adapters and of the batch: 14 million parameters, with these."""

    vocabulary: int = 8_000
    units: int = 384
    layers: int = 6
    heads: int = 6
    rank: int = 8
    time: int = 64
    batch: int = 16

    def model(self, lora: bool = True) -> nn.Module:
        """A GPT-2; with adapters, which alone are trainable, or without any."""
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        sizes: dict[str, Any] = {"n_embd": self.units, "n_layer": self.layers, "n_head": self.heads}
        config = GPT2Config(
            vocab_size=self.vocabulary, n_positions=self.time, **sizes, bos_token_id=0, eos_token_id=0, use_cache=False
        )
        model: Any = GPT2LMHeadModel(config)
        if lora:
            adapters = LoraConfig(r=self.rank, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
            model = get_peft_model(model, adapters)
        trained: nn.Module = model.train()
        return trained

    def tokens(self) -> Tensor:
        """What all of them are shown."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.vocabulary, (self.batch, self.time), generator=generator)


def benchmark_private_lora(sizes: Sizes | None = None, *, repeats: int = 15, memory: bool = True) -> list[Row]:
    """Steps of the same model, in turn, and the median of each against that of plain LoRA.

    Args:
        sizes: Of the model.
        repeats: How often each is timed.
        memory: Whether to measure the peak of memory too, each in a process of its own.
    """
    chosen = sizes or Sizes()
    steps = {way: make(chosen) for way, make in WAYS.items()}
    times: dict[str, list[float]] = {way: [] for way in steps}
    for turn in range(repeats + 1):
        # In turn, so that a time in which the machine is busy meets all of them.
        for way, step in steps.items():
            begin = time.perf_counter()
            step()
            if turn:
                times[way].append(time.perf_counter() - begin)
    medians = {way: statistics.median(found) for way, found in times.items()}
    rows = []
    for way, seconds in medians.items():
        beside = f"{1000 * seconds:.0f} ms" + (f", {_peak(chosen, way):.2f} GiB at its peak" if memory else "")
        target = Target("below", 1.5) if way == "private" else None
        rows.append(Row(f"GPT-2, LoRA: a step, {DESCRIBED[way]}", seconds / medians["plain"], "x", target, beside))
    return rows


def _peak(sizes: Sizes, way: str) -> float:
    """In GiB, libraries not counted."""
    peak = peak_memory_of(_some_steps, sizes, way)
    return (peak.after - peak.before) / GIB


def _some_steps(sizes: Sizes, way: str) -> None:
    step = WAYS[way](sizes)
    for _ in range(2):
        step()


# --- ways to take a step --------------------------------------------------------------------------------------------


def _plain(sizes: Sizes) -> Step:
    model = sizes.model()
    return _stepping(model, _optimizer(model), sizes)


def _private(sizes: Sizes, lora: bool = True) -> Step:
    model = sizes.model(lora)
    clipping = Clipping(model, max_grad_norm=NORM)
    clipping.attach()
    optimizer = private_optimizer(_optimizer(model), clipping, noise_multiplier=NOISE, expected_batch_size=sizes.batch)
    return _stepping(model, optimizer, sizes, lambda: clipping.begin(sizes.batch))


def _all_weights(sizes: Sizes) -> Step:
    return _private(sizes, lora=False)


def _opacus_hooks(sizes: Sizes) -> Step:
    model = sizes.model()
    optimizer = DPOptimizer(
        _optimizer(model), noise_multiplier=NOISE, max_grad_norm=NORM, expected_batch_size=sizes.batch
    )
    return _stepping(GradSampleModule(model), optimizer, sizes)


def _opacus_ghost(sizes: Sizes) -> Step:
    model = sizes.model()
    optimizer = DPOptimizerFastGradientClipping(
        _optimizer(model), noise_multiplier=NOISE, max_grad_norm=NORM, expected_batch_size=sizes.batch
    )
    hooked = GradSampleModuleFastGradientClipping(model, max_grad_norm=NORM, use_ghost_clipping=True)
    criterion = DPLossFastGradientClipping(hooked, optimizer, nn.CrossEntropyLoss())
    tokens = sizes.tokens()

    def step() -> None:
        optimizer.zero_grad()
        logits = hooked(input_ids=tokens).logits[:, :-1]
        criterion(logits.flatten(0, 1), tokens[:, 1:].flatten(), shape=logits.shape).backward()
        optimizer.step()

    return _quietly(step)


def _stepping(model: nn.Module, optimizer: Any, sizes: Sizes, begin: Step = lambda: None) -> Step:
    tokens = sizes.tokens()

    def step() -> None:
        optimizer.zero_grad()
        begin()
        logits = model(input_ids=tokens).logits[:, :-1]
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return _quietly(step)


def _quietly(step: Step) -> Step:
    def quiet() -> None:
        with warnings.catch_warnings():
            # Opacus listens to first layers in a way that PyTorch warns about.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            step()

    return quiet


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-4)


WAYS: Mapping[str, Callable[[Sizes], Step]] = MappingProxyType(
    {
        "plain": _plain,
        "private": _private,
        "hooks": _opacus_hooks,
        "ghost": _opacus_ghost,
        "all": _all_weights,
    }
)
DESCRIBED: Mapping[str, str] = MappingProxyType(
    {
        "plain": "plain PyTorch",
        "private": "private",
        "hooks": "Opacus with hooks",
        "ghost": "Opacus with ghost clipping",
        "all": "all weights in the place of adapters, private",
    }
)
