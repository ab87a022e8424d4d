"""`ScanCallback`: which of the secrets in its training data a model memorizes, measured while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure._checks import flag, instance
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks._surroundings import (
    TrainerSurroundings,
    final_moment,
    moment,
    show_at_the_end,
    show_to_monitors,
    tokenizer_of,
)
from lightning_exposure.data.text import WindowDataset
from lightning_exposure.errors import ArgumentError
from lightning_exposure.leakage import Decoder
from lightning_exposure.measuring import ModelOf, Schedule
from lightning_exposure.measuring.scanning import ReferenceSource, ScanMonitor, ScanSettings
from lightning_exposure.measuring.tracebacks import without_locals
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.scan import NOT_CALIBRATED, Scan
from lightning_exposure.secrets import Scanner
from lightning_exposure.tokenization import Tokenizer

_TEXT_FIELDS = ("text", "content", "input_ids")


class ScanCallback(Callback):
    """Finds the secrets in the training texts, and measures how much the model has memorized of them.

    The training run is not affected: the weights are bit for bit what they are without this callback.

    Logged are numbers only: `scan/secrets`, `scan/above_threshold`, `scan/memorized` (with a reference),
    `scan/extracted`, `scan/failed`, `scan/threshold`, `scan/exposure_max`, `scan/exposure_low_max`,
    `scan/leak_low_max`, `scan/leak_high_max`, `scan/seconds`. No secret is logged or kept in a checkpoint, nor is one
    printed unless you say `reveal`.

    Args:
        dataset_or_texts: What the model is trained on: a text, texts, or a dataset of texts, of mappings with a field
            "text", or of token ids. A secret that goes over the end of an item is found only in our `WindowDataset`.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        reference: A model that has not seen the texts; "before_training": the weights that training begins with,
            for a model that was pretrained; "without_adapters": the model with its adapters off; the path of a
            checkpoint of the same module. None: nothing is calibrated, and nothing is called memorized.
        scanner: What to look for; None: `Scanner()`.
        every_n_epochs: Scan after every n-th epoch, and when training ends; 0: only when training ends.
        alpha: The probability that any secret is called memorized although it is not.
        confidence: The confidence level of all intervals together.
        budget: The largest number of expansions of each count, leak and search.
        samples: The largest number of walks of an estimate.
        decoder: How text is taken to be sampled; None: `Decoder()`.
        limit: The largest number of secrets that are measured, those that occur most often; None: all.
        seed: The random seed of the walks.
        name: The first part of the metrics' names; two in one Trainer need different ones.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: The largest number of nodes the model reads at once.
        verbose: Print the table when training ends.
        reveal: Whether the table that is printed shows the secrets; otherwise each has a name instead, the same for
            equal ones. A logger such as W&B records what is printed.

    Attributes:
        history: The metrics of every scan, with its epoch and step; a resumed run continues it.

    Example:
        >>> from lightning_exposure.tokenization import CharTokenizer
        >>> text = "my ssn is 536-90-4399."
        >>> ScanCallback([text], tokenizer=CharTokenizer.from_text(text, "0123456789")).history
        []
    """

    def __init__(
        self,
        dataset_or_texts: str | Iterable[Any] | torch.utils.data.Dataset[Any],
        tokenizer: Tokenizer | Any | None = None,
        *,
        reference: ReferenceSource | None = None,
        scanner: Scanner | None = None,
        every_n_epochs: int = 0,
        alpha: float = 0.05,
        confidence: float = 0.95,
        budget: int = 20_000,
        samples: int = 2048,
        decoder: Decoder | None = None,
        limit: int | None = None,
        seed: int = 0,
        name: str = "scan",
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 4096,
        verbose: bool = True,
        reveal: bool = False,
    ) -> None:
        settings = ScanSettings(
            alpha=alpha,
            confidence=confidence,
            budget=budget,
            samples=samples,
            decoder=Decoder() if decoder is None else decoder,
            limit=limit,
            seed=seed,
            context=context,
            batch_size=batch_size,
        )
        _check_texts(dataset_or_texts)
        self.tokenizer = tokenizer
        if scanner is not None:
            instance("scanner", scanner, Scanner, "a Scanner", "For example Scanner(region='GB').")
        self.scanner = scanner
        self.name = name
        self.every_n_epochs = every_n_epochs
        self.verbose = flag("verbose", verbose)
        self.reveal = flag("reveal", reveal)
        self._given = dataset_or_texts
        self._monitor = ScanMonitor(Schedule(every_n_epochs), settings, reference=reference, model=model, name=name)

    @property
    def scan(self) -> Scan | None:
        """The newest scan, with the secrets in it; None if there was none."""
        return self._monitor.scan

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of every scan."""
        return self._monitor.history

    @property
    def state_key(self) -> str:
        """Different for callbacks with different names."""
        return f"{type(self).__name__}[{self.name}]"

    @without_locals
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the secrets, and what they are measured against.

        Raises:
            ArgumentError: There is no tokenizer, or an item of the dataset is no text.
        """
        tokenizer = tokenizer_of(trainer, self.tokenizer)
        with TrainerSurroundings(trainer).status("scanning the texts"):
            texts = texts_of(self._given, tokenizer)
            scanner = Scanner() if self.scanner is None else self.scanner
            found = {name: scanner.find(text) for name, text in texts.items()}
        found = {name: each for name, each in found.items() if each}
        self._monitor.begin(pl_module, tokenizer, found, resumed=trainer.ckpt_path is not None)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Scan every few epochs."""
        now = moment(trainer, epoch_ended=True)
        metrics = self._monitor.after_epoch(pl_module, TrainerSurroundings(trainer), now)
        if metrics is not None:
            show_to_monitors(pl_module, metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Scan the last weights, while the model is still on its device."""
        metrics = self._monitor.finish(pl_module, TrainerSurroundings(trainer), final_moment(trainer))
        if metrics is not None:
            show_at_the_end(trainer, metrics)
        if self.verbose and self.scan is not None and trainer.is_global_zero:
            table = f"{self.scan.table(reveal=self.reveal)}\n\n" if self.scan.rows else ""
            note = "" if self.scan.calibrated else f"\n{NOT_CALIBRATED[0].upper()}{NOT_CALIBRATED[1:]}"
            say(trainer, f"{table}{self.scan.summary()}{note}")

    def add_to_record(self, record: RunRecord) -> None:
        """Put the newest scan, masked, into the record of the run."""
        self._monitor.add_to_record(record)

    def state_dict(self) -> dict[str, Any]:
        """The history: numbers, and no secret."""
        return self._monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a history."""
        self._monitor.load_state_dict(state_dict)


def texts_of(given: Any, tokenizer: Tokenizer | Any) -> dict[str, str]:
    """The texts of whatever holds them, by their numbers.

    Args:
        given: A text, texts, or a dataset.
        tokenizer: Decodes token ids.

    Raises:
        ArgumentError: An item is no text.
    """
    if isinstance(given, str):
        return {"text": given}
    if isinstance(given, WindowDataset):  # windows would cut secrets in two
        return {"text": tokenizer.decode(given.ids.tolist())}
    items = (given[number] for number in range(len(given))) if hasattr(given, "__getitem__") else given
    return {f"text {number}": _text_of(item, number, tokenizer) for number, item in enumerate(items, 1)}


def _text_of(item: Any, number: int, tokenizer: Tokenizer | Any) -> str:
    if isinstance(item, Mapping):
        item = next((item[name] for name in _TEXT_FIELDS if name in item), item)
    if isinstance(item, str):
        return item
    if isinstance(item, tuple | list) and item and isinstance(item[0], str | torch.Tensor):
        return _text_of(item[0], number, tokenizer)  # inputs and targets
    ids = item.tolist() if isinstance(item, torch.Tensor) else item
    if isinstance(ids, Sequence) and all(isinstance(token, int) for token in ids):
        return str(tokenizer.decode(list(ids)))
    raise ArgumentError(
        f"dataset_or_texts has an item of type {type(item).__name__} (number {number}); expected texts, mappings with "
        "a field 'text', or token ids. Give the texts themselves as a list."
    )


def _check_texts(given: Any) -> None:
    if not isinstance(given, Iterable) and not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        raise ArgumentError(
            f"dataset_or_texts is {type(given).__name__}; expected a text, a list of texts, or a dataset of them. Give "
            "what the model is trained on."
        )
