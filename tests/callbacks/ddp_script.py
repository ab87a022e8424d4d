"""Trains in two processes (or one) and writes what each rank has: run by test_ddp.py.

Usage: python ddp_script.py FOLDER DEVICES WITH_CALLBACKS
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L  # noqa: N812
import torch

from lightning_exposure import ExposureCallback, ExtractionCallback
from tests.callbacks.setups import BOTH, CHARS, Model, loader, trainer


def main() -> None:
    folder, devices, with_callbacks = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "yes"
    L.seed_everything(3, verbose=False)
    exposure = ExposureCallback(BOTH, CHARS)
    attack = ExtractionCallback(BOTH, CHARS, verbose=False)
    callbacks = [exposure, attack] if with_callbacks else []
    options = {"strategy": "ddp", "devices": devices} if devices > 1 else {"devices": 1}
    run = trainer(folder, *callbacks, max_epochs=3, **options)
    model = Model()
    run.fit(model, loader(BOTH), loader(shuffle=False))
    found = {name: attack.to_dict()["candidates"] for name, attack in attack.extractions.items()}
    torch.save(
        {
            "weights": model.state_dict(),
            "bits": [[e.bits for e in m.estimates.values()] for m in exposure.history],
            "texts": [[e.secret for e in m.estimates.values()] for m in exposure.history],
            "extractions": found,
        },
        folder / f"rank{run.global_rank}.pt",
    )


if __name__ == "__main__":
    main()
