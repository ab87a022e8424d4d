"""How many of many healthy private training runs does the proof refuse? `python -m benchmarks.false_alarms 200`."""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from benchmarks.proof_cost import Gpt, train
from lightning_exposure.errors import FitError
from tests.privacy.mutations import MODELS
from tests.privacy.mutations import train as train_small

TINY = Gpt(vocabulary=50, units=16, layers=2, heads=2, time=12, batch=8, steps=8)


def false_alarms(runs: int) -> list[str]:
    """What was said about healthy training runs that were refused."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    said = []
    for run in range(runs):
        try:
            _ways(run)[run % (len(MODELS) + 2)]()
        except FitError as problem:
            said.append(str(problem))
    return said


def _ways(run: int) -> list[Callable[[], object]]:
    folder = Path(tempfile.gettempdir())
    noise = (1.0, 0.3, 5.0)[run // 5 % 3]
    small = [lambda model=model: train_small(folder, model, noise_multiplier=noise) for model in MODELS]
    return [*small, lambda: train(TINY, 3), lambda: train(Gpt(**{**vars(TINY), "lora": True}), 100)]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    alarms = false_alarms(count)
    print(f"{len(alarms)} of {count} healthy training runs were refused.", *alarms, sep="\n")
