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
from tests.callbacks.test_privacy_metrics import LIMIT, Resting
from tests.callbacks.test_privacy_sabotage import LowersTheNoise
from tests.callbacks.test_privacy_users import OWNERS, by_user
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


class Synced(Module):  # type: ignore[misc, valid-type]
    """Has a buffer, which DDP sends around, and logs something for which the processes wait for each other."""

    def __init__(self, kind: str, optimizer: str) -> None:
        super().__init__(kind, optimizer)
        self.register_buffer("constant", torch.ones(3))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(batch, batch_idx)
        self.log("synced", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss


class CountingStrategy(DDPStrategy):
    passes = 0

    def training_step(self, *args: Any, **options: Any) -> Any:
        self.passes += 1
        return super().training_step(*args, **options)


def virtual(run: Any, folder: Path) -> dict[str, Any]:
    """Whole batches, and the same in parts; also where most of the draws of a process are empty."""
    found: dict[str, Any] = {}
    few = DataLoader(TensorDataset(DATA[:5]), batch_size=2)
    for name, limit, data in (
        ("whole", None, Data()),
        ("parts", 4, Data()),
        ("few whole", None, PoissonLoader(few)),
        ("few parts", 1, PoissonLoader(few)),
    ):
        module, strategy = Synced("lstm", "sgd"), CountingStrategy()
        callback = privacy(max_physical_batch_size=limit, verify_steps=100)
        ran = run(callback, max_epochs=3, strategy=strategy)
        ran.fit(module, data)
        found[name] = {
            "weights": weights(module),
            "history": [list(entry) for entry in callback.history],
            "steps": ran.global_step,
            "seen": module.seen,
            "passes": strategy.passes,
            "logged": float(ran.callback_metrics["synced_epoch"]),
        }
    return found


class Numbered(Data):
    """Every record with its number and that of its user."""

    def train_dataloader(self) -> Any:
        records = TensorDataset(DATA, torch.arange(len(DATA)), torch.tensor(OWNERS))
        return DataLoader(records, batch_size=self.batch_size, shuffle=True)


class Noting(Module):  # type: ignore[misc, valid-type]
    """Notes which users it is shown, and with which records, batch by batch."""

    def __init__(self, kind: str, optimizer: str) -> None:
        super().__init__(kind, optimizer)
        self.noted: list[list[tuple[int, int]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(batch, batch_idx)
        self.noted.append(list(zip(batch[2].tolist(), batch[1].tolist(), strict=True)))
        return loss


def users(run: Any, folder: Path) -> dict[str, Any]:
    """Users and not records divided among the processes, in whole batches and in parts; and one with few users."""
    found: dict[str, Any] = {}
    few = {"user": ["ann", "ann", "bob", "cyd"], "max_records_per_user": 2}
    for name, settings, data, epochs in (
        ("whole", {"verify_steps": 0}, Numbered(batch_size=4), 3),
        ("proven", {"verify_steps": 100}, Numbered(batch_size=4), 3),
        ("parts", {"verify_steps": 100, "max_physical_batch_size": 3}, Numbered(batch_size=4), 3),
        ("few", {"verify_steps": 100, **few}, Data(records=4, batch_size=1), 8),
    ):
        module = (Module if name == "few" else Noting)("lstm", "sgd")
        callback = by_user(**settings)
        run(callback, max_epochs=epochs).fit(module, data)
        found[name] = {
            "weights": weights(module),
            "history": [list(entry) for entry in callback.history],
            "noted": getattr(module, "noted", []),
        }
    return found


def sabotaged(run: Any, folder: Path) -> dict[str, Any]:
    try:
        run(privacy(), LowersTheNoise()).fit(Module(), Data())
    except FitError as error:
        return {"error": str(error)}
    return {}


def norms(run: Any, folder: Path) -> dict[str, Any]:
    """What is logged of the norms of the examples of both processes, while the weights rest."""
    module = Resting()
    ran = run(privacy(max_grad_norm=LIMIT), max_epochs=1)
    ran.fit(module, Data())
    return {name: float(value) for name, value in ran.callback_metrics.items()}


def adaptive(run: Any, folder: Path) -> dict[str, Any]:
    """A norm that adapts, in whole batches, in parts, resumed, and where most draws are empty; every step proven."""
    saving = ModelCheckpoint(folder / "adaptive", save_top_k=-1, filename="{epoch}")
    few = PoissonLoader(DataLoader(TensorDataset(DATA[:3]), batch_size=1))
    found: dict[str, Any] = {}
    for name, limit, data, options in (
        ("whole", None, Data(), {"enable_checkpointing": True}),
        ("parts", 4, Data(), {}),
        ("few", None, few, {}),
        ("resumed", None, Data(), {}),
    ):
        module = Module("lstm", "sgd")
        callback = privacy(clipping="adaptive", max_physical_batch_size=limit, verify_steps=100)
        seen = _norms_of(callback)
        ran = run(callback, *([saving] if options else []), max_epochs=3, **options)
        ran.fit(module, data, ckpt_path=folder / "adaptive" / "epoch=0.ckpt" if name == "resumed" else None)
        found[name] = {"weights": weights(module), "norms": [norm for _, norm in callback.norm_in_force.epochs]}
        found.setdefault("first", seen[0])
    return found


def _norms_of(callback: Any) -> list[float]:
    """Where the norm after every step will be."""
    found, original = [], callback._count

    def count() -> None:
        found.append(callback.norm_in_force.norm)
        original()

    callback._count = count
    return found


def secure(run: Any, folder: Path) -> dict[str, Any]:
    """Batches and noise from the operating system; every step proven."""
    module, drawn = Module("lstm", "sgd"), []
    callback = privacy(secure=True, seed=None, clipping="adaptive", verify_steps=100)
    loader = PoissonLoader(DataLoader(TensorDataset(DATA), batch_size=15))
    original = callback._count

    def count() -> None:
        assert callback._fit is not None
        generator = callback._fit.steps.optimizer.generator
        drawn.append((type(generator).__name__, int(generator.get_state())))
        original()

    callback._count = count  # type: ignore[method-assign]
    run(callback, max_epochs=3).fit(module, loader)
    return {"weights": weights(module), "norm": callback.norm_in_force.norm, "drawn": drawn, "seen": module.seen}


def steps(run: Any, folder: Path) -> dict[str, Any]:
    """Private steps without a Trainer, in the processes that the others have started."""
    return of_process(torch.distributed.get_rank())


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")

    def run(*callbacks: Any, **options: Any) -> Any:
        defaults = {"devices": 2, "strategy": DDPStrategy()}
        return trainer(folder, *callbacks, **(defaults | options))

    parts = (ordinary, empty, canaries, virtual, users, sabotaged, norms, adaptive, secure, steps)
    found = {part.__name__: part(run, folder) for part in parts}
    torch.save(found, folder / f"rank{torch.distributed.get_rank()}.pt")


if __name__ == "__main__":
    main()
