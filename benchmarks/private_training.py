"""What a private training step costs: ours and Opacus' against one of plain PyTorch, in time and in memory."""

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
from opacus.layers import DPGRU, DPLSTM
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from benchmarks.memory import GIB, PeakMemory, peak_memory_of
from benchmarks.table import Row, Target
from lightning_exposure.modules import RecurrentNetwork, TransformerNetwork
from lightning_exposure.privacy.clipping.clipping import Clipping
from lightning_exposure.privacy.clipping.recurrent_layers import run_layers
from lightning_exposure.privacy.steps.optimizer import private_optimizer

NORM, NOISE = 1.0, 1.0
Step = Callable[[], None]


@dataclass(frozen=True)
class Setting:
    """Sizes of the models and of the batch."""

    vocabulary: int = 50
    units: int = 200
    recurrent_layers: int = 2
    transformer_layers: int = 4
    heads: int = 4
    time: int = 20
    batch: int = 128

    def model(self, kind: str) -> nn.Module:
        torch.manual_seed(0)
        if kind == "Transformer":
            return TransformerNetwork(
                self.vocabulary,
                hidden_size=self.units,
                num_layers=self.transformer_layers,
                num_heads=self.heads,
                max_length=self.time,
            )
        return RecurrentNetwork(
            self.vocabulary,
            cell=kind.lower(),
            hidden_size=self.units,
            embedding_size=self.units,
            num_layers=self.recurrent_layers,
        )

    def examples(self) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, self.vocabulary, (self.batch, self.time + 1))
        # Contiguous, because Opacus' ghost clipping can read nothing else.
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def benchmark_private_training(
    setting: Setting | None = None, *, repeats: int = 25, slow_repeats: int = 3, memory: bool = True
) -> list[Row]:
    """Steps of the same model, in turn, and the median of each against that of plain PyTorch.

    Args:
        setting: Sizes.
        repeats: How often each is timed.
        slow_repeats: The same for Opacus' own ways.
        memory: Whether to measure the peak of memory too, each in a process of its own.
    """
    setting = setting or Setting()
    rows: list[Row] = []
    for kind in WAYS:
        seconds = _seconds(kind, setting, repeats, slow_repeats)
        peaks = {way: peak_memory_of(_some_steps, setting, kind, way) for way in seconds if memory}
        rows += _rows(kind, seconds, peaks)
    return rows


def _rows(kind: str, seconds: Mapping[str, float], peaks: Mapping[str, PeakMemory]) -> list[Row]:
    plain, private = seconds["plain"], seconds["private"]
    rows = []
    for way, median in seconds.items():
        beside = f"{1000 * median:.0f} ms" + (f", {_added(peaks[way])}" if way in peaks else "")
        limit = LIMITS.get(way)
        target = None if limit is None else Target("below", limit)
        rows.append(Row(f"{kind}: a step, {DESCRIBED[way]}", median / plain, "x", target, beside))
    for way in seconds:
        if way in SLOW:
            # Only a recurrent layer of Opacus' is as slow as that.
            limit = 1.0 if kind == "Transformer" else 15.0
            what = f"{kind}: a private step of ours, faster than {DESCRIBED[way]}"
            rows.append(Row(what, seconds[way] / private, "x", Target("at least", limit)))
    return rows


def _seconds(kind: str, setting: Setting, repeats: int, slow_repeats: int) -> dict[str, float]:
    """The median time of a step, for every way."""
    steps = {way: WAYS[kind][way](setting, kind) for way in WAYS[kind]}
    found: dict[str, list[float]] = {way: [] for way in steps}
    for step in steps.values():
        step()
    for turn in range(repeats):
        # In turn, so that a time in which the machine is busy meets all of them.
        for way, step in steps.items():
            if turn < slow_repeats or way not in SLOW:
                begin = time.perf_counter()
                step()
                found[way].append(time.perf_counter() - begin)
    return {way: statistics.median(times) for way, times in found.items()}


def _some_steps(setting: Setting, kind: str, way: str) -> None:
    step = WAYS[kind][way](setting, kind)
    for _ in range(2):
        step()


def _added(peak: PeakMemory) -> str:
    return f"{(peak.after - peak.before) / GIB:.2f} GiB at its peak, libraries not counted"


# --- ways to take a step --------------------------------------------------------------------------------------------


def _plain(setting: Setting, kind: str) -> Step:
    model = setting.model(kind)
    return _stepping(model, _optimizer(model), setting)


def _fused(setting: Setting, kind: str) -> Step:
    model = setting.model(kind)
    layers: Any = model.layers
    layers.forward = lambda inputs, state=None: run_layers(layers, inputs, state)
    return _stepping(model, _optimizer(model), setting)


def _private(setting: Setting, kind: str) -> Step:
    model = setting.model(kind)
    clipping = Clipping(model, max_grad_norm=NORM)
    clipping.attach()
    optimizer = private_optimizer(
        _optimizer(model), clipping, noise_multiplier=NOISE, expected_batch_size=setting.batch
    )
    return _stepping(model, optimizer, setting, lambda: clipping.begin(setting.batch))


def _opacus_hooks(setting: Setting, kind: str) -> Step:
    model = _with_opacus_layers(setting.model(kind))
    optimizer = DPOptimizer(
        _optimizer(model), noise_multiplier=NOISE, max_grad_norm=NORM, expected_batch_size=setting.batch
    )
    return _stepping(GradSampleModule(model), optimizer, setting)


def _opacus_ghost(setting: Setting, kind: str) -> Step:
    model = setting.model(kind)
    optimizer = DPOptimizerFastGradientClipping(
        _optimizer(model), noise_multiplier=NOISE, max_grad_norm=NORM, expected_batch_size=setting.batch
    )
    hooked = GradSampleModuleFastGradientClipping(model, max_grad_norm=NORM, use_ghost_clipping=True)
    criterion = DPLossFastGradientClipping(hooked, optimizer, nn.CrossEntropyLoss())
    inputs, targets = setting.examples()

    def step() -> None:
        optimizer.zero_grad()
        logits = hooked(inputs)
        criterion(logits.flatten(0, 1), targets.flatten(), shape=logits.shape).backward()
        optimizer.step()

    return _quietly(step)


def _stepping(model: nn.Module, optimizer: Any, setting: Setting, begin: Step = lambda: None) -> Step:
    inputs, targets = setting.examples()

    def step() -> None:
        optimizer.zero_grad()
        begin()
        outputs = model(inputs)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
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
    return torch.optim.RMSprop(model.parameters(), lr=0.001)


def _with_opacus_layers(model: nn.Module) -> nn.Module:
    layers = getattr(model, "layers", None)
    if isinstance(layers, nn.LSTM | nn.GRU):
        kind = DPLSTM if isinstance(layers, nn.LSTM) else DPGRU
        model.layers = kind(layers.input_size, layers.hidden_size, layers.num_layers, batch_first=True)
    return model


_RECURRENT = MappingProxyType({"plain": _plain, "fused": _fused, "private": _private, "hooks": _opacus_hooks})
WAYS: Mapping[str, Mapping[str, Callable[[Setting, str], Step]]] = MappingProxyType(
    {
        "LSTM": _RECURRENT,
        "GRU": _RECURRENT,
        "Transformer": MappingProxyType(
            {"plain": _plain, "private": _private, "hooks": _opacus_hooks, "ghost": _opacus_ghost}
        ),
    }
)
DESCRIBED: Mapping[str, str] = MappingProxyType(
    {
        "plain": "plain PyTorch",
        "fused": "our kernel without privacy",
        "private": "private",
        "hooks": "Opacus with hooks",
        "ghost": "Opacus with ghost clipping",
    }
)
LIMITS: Mapping[str, float] = MappingProxyType({"fused": 1.3, "private": 2.0})
SLOW = ("hooks", "ghost")
