"""How many of many healthy private training runs does the proof refuse? `python -m benchmarks.false_alarms 200`."""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.proof_cost import Gpt, train
from lightning_exposure.errors import FitError
from tests.privacy.mutations import MODELS
from tests.privacy.mutations import train as train_small

SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "flat": {},
        "per layer": {"clipping": "per_layer"},
        "adaptive": {"clipping": "adaptive"},
        "secure": {"secure": True},
        "in parts": {"max_physical_batch_size": 16},
        "users": {"users": True},
        "users, adaptive, secure, in parts": {
            "users": True,
            "clipping": "adaptive",
            "secure": True,
            "max_physical_batch_size": 16,
        },
    }
)
TINY = Gpt(vocabulary=50, units=16, layers=2, heads=2, time=12, batch=8, steps=8)


def false_alarms(runs: int) -> list[str]:
    """What was said about healthy training runs that were refused."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    said = []
    for run in range(runs):
        try:
            ways = _ways(run)
            ways[run % len(ways)]()
        except FitError as problem:
            said.append(str(problem))
    return said


def _ways(run: int) -> list[Callable[[], object]]:
    """All kinds of training runs; the noise changes from one round of them to the next."""
    folder = Path(tempfile.gettempdir())
    gpts = [partial(train, TINY, 3), partial(train, replace(TINY, lora=True), 100)]
    noise = (1.0, 0.3, 5.0)[run // (len(MODELS) * len(SETTINGS) + len(gpts)) % 3]
    small = [
        partial(train_small, folder, model, noise_multiplier=noise, **settings)
        for settings in SETTINGS.values()
        for model in MODELS
    ]
    return [*gpts, *small]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    alarms = false_alarms(count)
    print(f"{len(alarms)} of {count} healthy training runs were refused.", *alarms, sep="\n")
