"""What measuring exposure every epoch adds to a training run, and what its preparation costs several callbacks."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L  # noqa: N812

from benchmarks.table import Row, Target
from benchmarks.timing import best_of_both
from lightning_exposure import CanarySet, ExposureCallback, SecretFormat, SecretTree
from lightning_exposure.data import TextDataModule
from lightning_exposure.measuring import SharedTrees
from lightning_exposure.modules import LanguageModel
from lightning_exposure.tokenization.spelling import Spelling

_CALLBACKS = 3
"""That measures, that attacks, that audits."""


class _EpochSeconds(L.Callback):
    """The time of the training batches of each epoch, without validation and without the measurement."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, *arguments: Any) -> None:
        self._end = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds.append(self._end - self._start)


def benchmark_callback(counts: tuple[int, ...] = (10, 100), *, epochs: int = 3, text: str | None = None) -> list[Row]:
    """Seconds of `ExposureCallback` per epoch against the epoch's own training time, on the demo's set-up.

    Args:
        counts: How many canaries of one format.
        epochs: How long to train.
        text: Instead of the embedded corpus.
    """
    return [*(_measure(count, epochs, text) for count in counts), _prepare(text)]


def _measure(count: int, epochs: int, text: str | None) -> Row:
    repetitions = [1, 4, 16, 1, 4, 1, 4, 1, 4, 1][:count] + [1] * (count - 10)
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=repetitions, seed=0)
    L.seed_everything(0, verbose=False)
    data = TextDataModule(text, canaries=canaries)
    data.setup("fit")
    exposure, clock = ExposureCallback(canaries, references=0), _EpochSeconds()
    with TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[exposure, clock], default_root_dir=Path(folder),
        )  # fmt: skip
        trainer.fit(LanguageModel(vocab_size=data.tokenizer.vocab_size), data)
    measuring = sum(measurement.seconds for measurement in exposure.history)
    training = sum(clock.seconds)
    return Row(
        f"exposure of {count} canaries after each epoch: share of the epoch's training time",
        100 * measuring / training,
        "%",
        Target("below", 5.0),
        f"{measuring / epochs:.2f} s to {training / epochs:.1f} s per epoch",
    )


def _prepare(text: str | None) -> Row:
    """Trees that the callbacks of a Trainer share, against a spelling to check with and a tree for each of them."""
    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1], seed=0)
    data = TextDataModule(text, canaries=canaries)
    data.setup("fit")
    (format,), tokenizer = canaries.by_format(), data.tokenizer
    model = LanguageModel(vocab_size=tokenizer.vocab_size)

    def together() -> None:
        shared = SharedTrees()
        for _ in range(_CALLBACKS):
            shared.spelling(format, tokenizer)
            shared.tree(model, format, tokenizer)

    def apart() -> None:
        for _ in range(_CALLBACKS):
            Spelling(format, tokenizer)
            SecretTree(model, format, tokenizer).root()

    _, _, shared, own = best_of_both(3, together, apart)
    return Row(
        f"trees of {_CALLBACKS} callbacks in one Trainer: share of the time that trees of their own take",
        100 * shared / own,
        "%",
        Target("below", 50.0),
        f"{1000 * shared:.0f} ms to {1000 * own:.0f} ms before training",
    )
