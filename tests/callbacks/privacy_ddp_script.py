"""Trains privately in two processes and writes what each rank has: run by test_privacy_ddp.py.

Usage: python -m tests.callbacks.privacy_ddp_script FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.data import CanaryDataModule
from lightning_exposure.errors import FitError
from lightning_exposure.privacy import PoissonLoader
from tests.callbacks.privacy_setups import DATA, TIME, Data, Module, privacy, trainer, weights
from tests.callbacks.test_privacy_sabotage import LowersTheNoise
from tests.privacy.distributed_steps import of_process

CANARIES = CanarySet.draw(SecretFormat("#####?"), repetitions=[1, 12], seed=0)


def encode(text: str) -> Any:
    # The first token is one that no other record begins with.
    return (torch.tensor([8, *(ord(letter) % 8 for letter in text[1:TIME])]),)


def ordinary(run: Any, folder: Path) -> dict[str, Any]:
    """The whole run, with a checkpoint every epoch; and the same resumed after the first of three."""
    module, callback = Module("lstm", "sgd"), privacy()
    saving = ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}")
    run(callback, saving, max_epochs=3, enable_checkpointing=True).fit(module, Data())
    resumed, again = Module("lstm", "sgd"), privacy()
    run(again, max_epochs=3).fit(resumed, Data(), ckpt_path=folder / "epoch=0.ckpt")
    return {
        "weights": weights(module),
        "resumed": weights(resumed),
        "history": [list(entry) for entry in callback.history],
        "history again": [list(entry) for entry in again.history],
        "seen": module.seen,
    }


def empty(run: Any, folder: Path) -> dict[str, Any]:
    """Three records, of which the second process has one; every step is proven, and DDP looks for gradients."""
    module, callback = Module("layers", "adam"), privacy(verify_steps=100)
    loader = PoissonLoader(DataLoader(TensorDataset(DATA[:3]), batch_size=1))
    looking = DDPStrategy(find_unused_parameters=True)
    run(callback, max_epochs=8, strategy=looking).fit(module, loader)
    return {"weights": weights(module), "history": [list(entry) for entry in callback.history]}


def canaries(run: Any, folder: Path) -> dict[str, Any]:
    data = CanaryDataModule(DataLoader(TensorDataset(DATA % 8), batch_size=8, shuffle=True), CANARIES, encode)
    module, callback = Counting(), privacy(target_epsilon=3.0, max_epsilon=3.0)
    run(callback, max_epochs=3).fit(module, data)
    return {
        "weights": weights(module),
        "history": [list(entry) for entry in callback.history],
        "epsilon": callback.epsilon,
        "mine": data.ledger.total,
        "all": data.ledger.gather().total,
        "read": module.canaries,
    }


class Counting(Module):  # type: ignore[misc, valid-type]
    """Counts the canaries that it is shown, by their first token."""

    canaries = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.canaries += int((batch[0][:, 0] == 8).sum())
        loss: torch.Tensor = super().training_step(batch, batch_idx)
        return loss


def sabotaged(run: Any, folder: Path) -> dict[str, Any]:
    try:
        run(privacy(), LowersTheNoise()).fit(Module(), Data())
    except FitError as error:
        return {"error": str(error)}
    return {}


def steps(run: Any, folder: Path) -> dict[str, Any]:
    """Private steps without a Trainer, in the processes that the others have started."""
    return of_process(torch.distributed.get_rank())


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")

    def run(*callbacks: Any, **options: Any) -> Any:
        defaults = {"devices": 2, "strategy": DDPStrategy()}
        return trainer(folder, *callbacks, **(defaults | options))

    parts = (ordinary, empty, canaries, sabotaged, steps)
    found = {part.__name__: part(run, folder) for part in parts}
    torch.save(found, folder / f"rank{torch.distributed.get_rank()}.pt")


if __name__ == "__main__":
    main()
