"""What other ways to clip and to draw cost: a private step with each, against one of the usual way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.private_training import NOISE, NORM, Setting
from benchmarks.table import Row
from lightning_exposure.privacy import AdaptiveClipping, Clipping
from lightning_exposure.privacy.steps.adaptive import FollowedNorm
from lightning_exposure.privacy.steps.optimizer import private_optimizer
from lightning_exposure.privacy.steps.secure import AnyGenerator, SecureGenerator

KINDS = ("LSTM", "Transformer")
NUMBERS = 1_000_000
Step = Callable[[], object]


def benchmark_private_ways(setting: Setting | None = None, *, repeats: int = 15, numbers: int = NUMBERS) -> list[Row]:
    """Steps of the same model, in turn, and the median of each against that of the usual way; and noise alone.

    Args:
        setting: Sizes.
        repeats: How often each is timed.
        numbers: How much noise is drawn at once.
    """
    setting = setting or Setting()
    usual, secure = torch.Generator().manual_seed(0), SecureGenerator()
    values = torch.zeros(numbers)
    seconds = _seconds(
        {"usual": lambda: torch.normal(values, 1.0, generator=usual), "secure": lambda: secure.noisy(values, 1.0)},
        repeats,
    )
    beside = f"{1000 * seconds['secure']:.0f} ms for {numbers:,} numbers, PyTorch's {1000 * seconds['usual']:.0f} ms"
    rows = [
        Row(
            "noise from the operating system, against PyTorch's",
            seconds["secure"] / seconds["usual"],
            "x",
            None,
            beside,
        )
    ]
    for kind in KINDS:
        seconds = _seconds({way: _step(setting, kind, way) for way in DESCRIBED}, repeats)
        rows += [
            Row(f"{kind}: a private step, {DESCRIBED[way]}", took / seconds["flat"], "x", None, f"{1000 * took:.0f} ms")
            for way, took in seconds.items()
        ]
    return rows


DESCRIBED: Mapping[str, str] = {
    "flat": "one norm",
    "per_layer": "clipped layer by layer",
    "adaptive": "with a norm that adapts",
    "secure": "with noise from the operating system",
}


def _step(setting: Setting, kind: str, way: str) -> Step:
    model = setting.model(kind)
    clipping = Clipping(model, max_grad_norm=NORM, per_layer=way == "per_layer")
    clipping.attach()
    generator: AnyGenerator = SecureGenerator() if way == "secure" else torch.Generator().manual_seed(0)
    optimizer = private_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        clipping,
        noise_multiplier=NOISE,
        expected_batch_size=setting.batch,
        generator=generator,
    )
    if way == "adaptive":
        optimizer.followed = FollowedNorm(AdaptiveClipping().tracking(NOISE, setting.batch), NORM)
    inputs, targets = setting.examples()

    def step() -> None:
        optimizer.zero_grad()
        clipping.begin(setting.batch)
        outputs = model(inputs)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    return step


def _seconds(steps: Mapping[str, Step], repeats: int) -> dict[str, float]:
    """The median time of each, in turn, so that a time in which the machine is busy meets all of them."""
    found: dict[str, list[float]] = {way: [] for way in steps}
    for step in steps.values():
        step()
    for _ in range(repeats):
        for way, step in steps.items():
            begin = time.perf_counter()
            step()
            found[way].append(time.perf_counter() - begin)
    return {way: statistics.median(times) for way, times in found.items()}
