"""Trains in two processes with a gate, and writes what each rank knows: run by test_gate.py. Usage: ... FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L  # noqa: N812
import torch

from lightning_exposure import ExposureCallback, ExposureGate
from tests.callbacks.setups import BOTH, CHARS, Model, loader, trainer


def main() -> None:
    folder = Path(sys.argv[1])
    L.seed_everything(3, verbose=False)
    exposure = ExposureCallback(BOTH, CHARS, samples=16, budget=50, precision=None, baseline=False, references=0)
    further = 0
    measure_again = exposure.monitor.measure_again

    def counting(*arguments: object, **settings: object) -> object:
        nonlocal further
        further += 1
        return measure_again(*arguments, **settings)  # type: ignore[arg-type]

    exposure.monitor.measure_again = counting  # type: ignore[method-assign,assignment]
    gate = ExposureGate(max_bits=6.6, undecided="ignore")
    run = trainer(folder, gate, exposure, max_epochs=12, strategy="ddp", devices=2, limit_val_batches=0)
    data = loader(BOTH)
    run.fit(Model(lr=2e-2), data)
    found = {
        "answer": gate.answer,
        "reason": gate.reason,
        "stopped_at_step": gate.stopped_at_step,
        "step": run.global_step,
        "all_steps": 12 * run.num_training_batches,
        "further": further,
    }
    torch.save(found, folder / f"rank{run.global_rank}.pt")


if __name__ == "__main__":
    main()
