"""What most studies share: train a language model on a text with secrets in it, and measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lightning_exposure.data import TextDataModule
from lightning_exposure.errors import FitError
from lightning_exposure.exposure import ExposureEstimate, measure_exposure
from lightning_exposure.modules import LanguageModel
from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.studies.study import Cell, Column, Value
from lightning_exposure.tokenization import CharTokenizer, WordTokenizer
from lightning_exposure.tree import SecretTree

TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
"""A Trainer that leaves nothing behind. A scale's `trainer` settings come after these."""

LOSSES = (Column("train_loss", digits=3), Column("test_loss", digits=3))
"""In nats per token; the test loss is of the last tenth of the text, which is not trained on."""

EXPOSURE = (
    Column("exposure_bits", least=0, most="size_bits"),
    Column("size_bits", "leave out"),
    Column("first", "share"),
    Column("margin_bits", least=0),
    Column("margin_is_bound", "leave out"),
    Column("skewnormal_bits", least=0),
    Column("method", "leave out"),
)
"""What `exposure_columns` fills: the exposure, exactly where it can be counted, and the most that it can be; whether
the secret is the likeliest of all, and by how many bits (or at least how many) then; and what the paper's method would
have said."""


@dataclass
class StudyModel:
    """A model after its training, or after one of its epochs.

    Attributes:
        model: The model.
        data: What it was trained on.
        epoch: After how many epochs.
        train_loss: In nats per token, over the last epoch.
        test_loss: In nats per token, of text that was not trained on.
    """

    model: LanguageModel
    data: TextDataModule
    epoch: int = 0
    train_loss: float = 0.0
    test_loss: float = 0.0

    @property
    def tokenizer(self) -> CharTokenizer | WordTokenizer:
        """Of the data."""
        return self.data.tokenizer

    @property
    def losses(self) -> dict[str, Value]:
        """The columns `LOSSES`."""
        return {"train_loss": self.train_loss, "test_loss": self.test_loss}

    def validated(self, model: LanguageModel) -> float:
        """The test loss of another model on the same data."""
        (metrics,) = pl.Trainer(**TRAINER).validate(model, self.data, verbose=False)
        return float(metrics["val_loss"])

    def tree(self, format: SecretFormat) -> SecretTree:
        """All secrets of a format under this model."""
        return SecretTree(self.model, format, self.tokenizer)


AfterEpoch = Callable[[StudyModel], None]


@dataclass
class _Watch(pl.Callback):
    """Hands over the model after every epoch."""

    trained: StudyModel
    after_epoch: AfterEpoch | None = None

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        metrics = trainer.callback_metrics
        self.trained.epoch = trainer.current_epoch + 1
        self.trained.train_loss = float(metrics["train_loss_epoch"])
        self.trained.test_loss = float(metrics["val_loss"])
        if self.after_epoch is not None:
            self.after_epoch(self.trained)


class _LowerOnPlateau(pl.Callback):
    """Lowers the learning rate when the test loss has stopped falling."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._scheduler = ReduceLROnPlateau(trainer.optimizers[0], **self._settings)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._scheduler.step(float(trainer.callback_metrics["val_loss"]))


def train_language_model(
    cell: Cell,
    canaries: CanarySet,
    *,
    model: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    after_epoch: AfterEpoch | None = None,
    prepare: Callable[[TextDataModule], None] | None = None,
    **trainer: Any,
) -> StudyModel:
    """Train one model as the settings of a cell say.

    The settings have `epochs`, `model` (arguments of `LanguageModel`), `data` (of `TextDataModule`) and, if the
    learning rate is to be lowered, `plateau` (of `ReduceLROnPlateau`); weights and the order of batches come from the
    cell's own seed, the places of the secrets from the one that all cells share.

    Args:
        cell: The settings, the seeds and the text.
        canaries: What is put into the text.
        model: Arguments that take the place of the settings'.
        data: Likewise.
        after_epoch: Called after every epoch, with the model as it is then.
        prepare: Called with the data, once they are set up and before the training begins.
        **trainer: Arguments of the Trainer.
    """
    settings = cell.settings
    arguments = {"seed": cell.secret_seed, **settings.get("data", {}), **(data or {})}
    # A short text of one line might be the name of a file.
    whole = cell.training_text if "\n" in cell.training_text else cell.training_text + "\n"
    text = TextDataModule(whole, canaries=canaries, **arguments)
    text.setup()
    if prepare is not None:
        prepare(text)
    torch.manual_seed(cell.random_seed)
    made = LanguageModel(vocab_size=text.tokenizer.vocab_size, **{**settings.get("model", {}), **(model or {})})
    watch = _Watch(StudyModel(made, text), after_epoch)
    lower = [_LowerOnPlateau(**settings["plateau"])] if "plateau" in settings else []
    callbacks = [watch, *lower, *trainer.pop("callbacks", [])]
    given = {**TRAINER, **settings.get("trainer", {}), "max_epochs": settings.get("epochs"), **trainer}
    pl.Trainer(callbacks=callbacks, **given).fit(made, text)
    made.eval()
    return watch.trained


def draw_secrets(cell: Cell, *patterns: str, repetitions: int | None = None) -> CanarySet:
    """One secret of each format, the same for all cells of a seed; inserted as often as the settings say."""
    formats = [SecretFormat(pattern) for pattern in patterns or (cell.settings["format"],)]
    copies = cell.settings["repetitions"] if repetitions is None else repetitions
    return CanarySet.draw(formats, repetitions=[copies], seed=cell.secret_seed)


def measure_secret(trained: StudyModel, format: SecretFormat, secret: str, cell: Cell) -> ExposureEstimate:
    """The exposure of a secret, counted exactly if the settings' `budget` of expansions allows."""
    budget = cell.settings.get("budget", 200_000)
    (estimate,) = measure_exposure(trained.tree(format), [secret], budget=budget, seed=cell.random_seed)
    return estimate


def skew_normal_bits(tree: SecretTree, secret: str, cell: Cell) -> float | None:
    """What the paper's method says, from as many random secrets as the settings say; None if nothing could be fitted.

    It can say more than there is: nothing keeps an extrapolation below log2 |R|.
    """
    references = cell.settings.get("references", 1000)
    try:
        (estimate,) = measure_exposure(tree, [secret], method="skewnormal", samples=references, seed=cell.random_seed)
    except FitError:
        return None
    return estimate.bits


def exposure_row(trained: StudyModel, format: SecretFormat, secret: str, cell: Cell) -> dict[str, Value]:
    """The columns `EXPOSURE`, of a secret that is measured now."""
    return exposure_columns(measure_secret(trained, format, secret, cell), trained.tree(format), cell)


def exposure_columns(estimate: ExposureEstimate, tree: SecretTree, cell: Cell) -> dict[str, Value]:
    """The columns `EXPOSURE`, of an estimate."""
    return {
        "exposure_bits": estimate.bits,
        "size_bits": estimate.size_bits,
        "first": estimate.rank == 1,
        "margin_bits": estimate.margin_bits,
        "margin_is_bound": None if estimate.margin_bits is None else estimate.margin_is_bound,
        "skewnormal_bits": skew_normal_bits(tree, estimate.secret, cell),
        "method": estimate.method,
    }
