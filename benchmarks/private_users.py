"""What it costs to protect users in the place of records: a private step on the same batch, clipped either way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from benchmarks.private_training import NOISE, NORM, Setting
from benchmarks.table import Row, Target
from lightning_exposure.privacy import Clipping, Grouped, private_optimizer

LIMIT = 2.0
"""How many times the step of records a step of users may take."""


def users_of(records: int, most: int = 8) -> Grouped:
    """Users with one to `most` records, as many of each, that have so many together.

    >>> users_of(128).groups[:9]
    (1, 2, 3, 4, 5, 6, 7, 8, 1)
    """
    groups: list[int] = []
    while records:
        groups.append(min(records, len(groups) % most + 1))
        records -= groups[-1]
    return Grouped(groups)


def benchmark_private_users(setting: Setting | None = None, *, repeats: int = 15) -> list[Row]:
    """Private steps of the same model on equally many records, in turn: of users, against those of records.

    Args:
        setting: Sizes.
        repeats: How often each is timed; the medians are compared.
    """
    setting = setting or Setting()
    users = users_of(setting.batch)
    rows = []
    for kind in ("LSTM", "GRU", "Transformer"):
        steps = [_step(setting, kind, examples) for examples in (setting.batch, users)]
        records, by_user = _medians(steps, repeats)
        what = (
            f"{kind}: a private step of {len(users.groups)} users with {setting.batch} records, beside one of records"
        )
        beside = f"{1000 * by_user:.0f} ms against {1000 * records:.0f} ms"
        rows.append(Row(what, by_user / records, "x", Target("below", LIMIT), beside))
    return rows


def _step(setting: Setting, kind: str, examples: int) -> Callable[[], None]:
    model = setting.model(kind)
    clipping = Clipping(model, max_grad_norm=NORM)
    clipping.attach()
    inner = torch.optim.RMSprop(model.parameters(), lr=0.001)
    optimizer = private_optimizer(inner, clipping, noise_multiplier=NOISE, expected_batch_size=setting.batch)
    inputs, targets = setting.examples()

    def step() -> None:
        optimizer.zero_grad()
        clipping.begin(examples)
        outputs = model(inputs)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    return step


def _medians(steps: Sequence[Callable[[], None]], repeats: int) -> list[float]:
    found: list[list[float]] = [[] for _ in steps]
    for step in steps:
        step()
    for _ in range(repeats):
        # In turn, so that a time in which the machine is busy meets all of them.
        for times, step in zip(found, steps, strict=True):
            begin = time.process_time()
            step()
            times.append(time.process_time() - begin)
    return [statistics.median(times) for times in found]
