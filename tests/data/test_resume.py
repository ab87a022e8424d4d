"""Stopping in the middle of an epoch and going on from the checkpoint: every canary still as often as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from lightning_exposure.data import CanaryDataModule
from tests.data.helpers import (
    CANARIES,
    COUNT,
    LIGHTNING_WARNINGS,
    WANTED,
    Numbers,
    NumberStream,
    encode,
    make_datamodule,
    make_module,
    make_trainer,
    numbers_loader,
    read,
)

pytestmark = LIGHTNING_WARNINGS


class Batches(BatchSampler):
    """A batch sampler of someone's own."""


LOADERS = {
    "sequential": lambda: numbers_loader(),
    "shuffled": lambda: numbers_loader(shuffle=True),
    "seeded": lambda: numbers_loader(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "batches": lambda: DataLoader(Numbers(50), batch_sampler=Batches(RandomSampler(range(50)), 4, False)),
    "drop last": lambda: numbers_loader(49, drop_last=True),
    "stream": lambda: DataLoader(NumberStream(50), batch_size=4),
    "workers": lambda: numbers_loader(shuffle=True, num_workers=1),
    "stream workers": lambda: DataLoader(NumberStream(50), batch_size=4, num_workers=1),
}


class StopAt(pl.Callback):
    """Writes a checkpoint after a number of steps, and pulls the plug."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


def run(kind: str, tmp_path: Path, *, stop: int | None = None, resume: bool = False) -> tuple[Any, CanaryDataModule]:
    torch.manual_seed(int(resume))  # a new process does not have the random numbers of the old one
    data = CanaryDataModule(make_datamodule(pl, LOADERS[kind]), CANARIES, encode=encode)
    module = make_module(pl)
    checkpoint = tmp_path / "middle.ckpt"
    callbacks = [] if stop is None else [StopAt(stop, checkpoint)]
    trainer = make_trainer(pl, tmp_path, max_epochs=2, callbacks=callbacks)
    if stop is None:
        trainer.fit(module, data, ckpt_path=checkpoint if resume else None)
    else:
        with pytest.raises(SystemExit):
            trainer.fit(module, data)
    return module, data


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("stop", [5, 20])
def test_an_epoch_that_is_continued_is_complete(kind: str, stop: int, tmp_path: Path) -> None:
    first, before = run(kind, tmp_path, stop=stop)
    second, after = run(kind, tmp_path, resume=True)
    for epoch in range(2):
        batches = first.epoch_batches(epoch) + second.epoch_batches(epoch)
        numbers, found = read(batches)
        assert found == WANTED
        # The user's examples, too: none is left out, none comes twice.
        assert len(numbers) == len(set(numbers))
        assert len(numbers) >= 47 if kind == "drop last" else sorted(numbers) == list(range(50))
    assert 0 < sum(before.ledger.total.values()) < 2 * COUNT
    assert after.ledger[0] == after.ledger[1] == WANTED
    assert after.ledger.epochs == [0, 1]


@pytest.mark.parametrize("kind", ["sequential", "seeded", "drop last", "stream", "workers"])
def test_a_run_with_an_interruption_is_the_run_without(kind: str, tmp_path: Path) -> None:
    whole, _ = run(kind, tmp_path)
    first, _ = run(kind, tmp_path, stop=7)
    second, _ = run(kind, tmp_path, resume=True)
    interrupted = [batch for _, batch in first.seen + second.seen]
    for (_, one), other in zip(whole.seen[:14], interrupted, strict=False):
        assert torch.equal(one, other)


def test_resuming_between_epochs(tmp_path: Path) -> None:
    path = tmp_path / "end.ckpt"
    data = CanaryDataModule(LOADERS["shuffled"](), CANARIES, encode=encode)
    trainer = make_trainer(pl, tmp_path)
    trainer.fit(make_module(pl), data)
    trainer.save_checkpoint(path)
    again = CanaryDataModule(LOADERS["shuffled"](), CANARIES, encode=encode)
    module = make_module(pl)
    make_trainer(pl, tmp_path, max_epochs=3).fit(module, again, ckpt_path=path)
    assert {epoch: again.ledger[epoch] for epoch in again.ledger.epochs} == dict.fromkeys(range(3), WANTED)
    assert read(module.epoch_batches(1))[1] == read(module.epoch_batches(2))[1] == WANTED
