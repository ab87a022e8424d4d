"""Trains in two processes (or one) and writes what each rank has: run by test_ddp.py.

Usage: python ddp_script.py FOLDER DEVICES WITH_CALLBACKS, the last one "yes", "no", "broken" for a model whose logits
are NaN in the second process once it was trained, "slow" for measurements that seem to take long in the first one, or
"audit" for an audit after every epoch.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import torch
from torch import Tensor, nn

from lightning_exposure import AuditCallback, ExposureCallback, ExtractionCallback
from tests.callbacks.audit_setups import SOME, data
from tests.callbacks.setups import BOTH, CHARS, Model, loader, trainer


class BreaksOnRankOne(nn.Module):
    """Reads as the module that it is given, until that was trained."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        logits, state = self.module(tokens, state)
        trainer = self.module.trainer
        broken = trainer.global_rank == 1 and trainer.global_step > 0
        return logits * (float("nan") if broken else 1.0), state


def audit(folder: Path, devices: int) -> None:
    """Canaries that coins left out or in, and what each rank can tell of them."""
    callback = AuditCallback(SOME, CHARS, every_n_epochs=1)
    options = {"strategy": "ddp", "devices": devices} if devices > 1 else {"devices": 1}
    run = trainer(folder, callback, max_epochs=3, **options)
    model = Model()
    run.fit(model, data(SOME))
    assert callback.result is not None
    found = {"result": callback.result.to_dict(), "scores": callback._audit.scores, "weights": model.state_dict()}
    found |= {"before": callback.baseline_bits, "looks": callback._audit.looks}
    torch.save(found | {"logged": dict(run.callback_metrics)}, folder / f"rank{run.global_rank}.pt")


def main() -> None:
    if sys.argv[3] == "audit":
        L.seed_everything(3, verbose=False)
        return audit(Path(sys.argv[1]), int(sys.argv[2]))
    folder, devices, with_callbacks = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] != "no"
    L.seed_everything(3, verbose=False)
    broken = sys.argv[3] == "broken"
    exposure = ExposureCallback(BOTH, CHARS, model=BreaksOnRankOne if broken else None)
    attack = ExtractionCallback(BOTH, CHARS, verbose=False)
    callbacks = [exposure, attack] if with_callbacks else []
    options = {"strategy": "ddp", "devices": devices} if devices > 1 else {"devices": 1}
    run = trainer(folder, *callbacks, max_epochs=3, **options)
    if sys.argv[3] == "slow" and run.global_rank == 0:
        ticks = itertools.count(0.0, 100.0)
        exposure._monitor.timer = lambda: next(ticks)
    model = Model()
    run.fit(model, loader(BOTH), loader(shuffle=False))
    assert not broken, "the measurement in the second process fails"
    found = {name: attack.to_dict()["candidates"] for name, attack in attack.extractions.items()}
    torch.save(
        {
            "weights": model.state_dict(),
            "bits": [[e.bits for e in m.estimates.values()] for m in exposure.history],
            "texts": [[e.secret for e in m.estimates.values()] for m in exposure.history],
            "arguments": [m.arguments | {"cut": m.cut} for m in exposure.history],
            "extractions": found,
        },
        folder / f"rank{run.global_rank}.pt",
    )


if __name__ == "__main__":
    main()
