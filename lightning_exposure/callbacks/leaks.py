"""`LeakCallback`: which secrets of its training data a model writes when text is sampled from it, while it trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_exposure._checks import flag
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks._surroundings import (
    TrainerSurroundings,
    final_moment,
    moment,
    show_at_the_end,
    show_to_monitors,
    tokenizer_of,
)
from lightning_exposure.callbacks.scan import texts_of
from lightning_exposure.leakage import Decoder, SampledLeaks
from lightning_exposure.leakage.sampled import COLUMNS
from lightning_exposure.leakage.sampling import finder_for
from lightning_exposure.measuring import ModelOf, Schedule
from lightning_exposure.measuring.leaks import LeakMonitor, SamplingSettings
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.tables import text_table
from lightning_exposure.secrets import CanarySet, Scanner
from lightning_exposure.tokenization import Tokenizer


class LeakCallback(Callback):
    """Samples text from the model, and counts which secrets of the training data appear in it, per class.

    The training run is not affected: the weights are bit for bit what they are without this callback.

    Logged are numbers only: of all classes together `leaks/secrets` (how many distinct secrets appeared), `leaks/rate`,
    `leaks/rate_low` and `leaks/rate_high` (the share of samples with at least one of them, and its Clopper-Pearson
    interval); the same of each class as `leaks/<class>_rate` and so on; `leaks/controls_rate` for canaries that were
    never inserted, `leaks/<class>_new` for what a scanner finds in no training text; `leaks/samples`, `leaks/seconds`.
    No secret is logged, printed or kept in a checkpoint.

    Args:
        scanner_or_canaries: Canaries, or a scanner.
        training: For a scanner: what the model is trained on, as `ScanCallback` takes it.
        tokenizer: How the module reads text; None: the datamodule's `tokenizer`.
        samples: How many texts are written.
        length: How many tokens each has at most.
        temperature: What logits are divided by.
        top_k: Only this many of the most likely tokens are drawn from; None: all.
        top_p: Only the most likely tokens that together have at least this probability; None: all.
        prompt: What the model is given; None: what the tokenizer puts before every text, or else a new line or a space.
        every_n_epochs: Sample after every n-th epoch, and when training ends; 0: only when training ends.
        seed: Of all random numbers: the same each time, so that it is the model that makes the difference.
        confidence: Of each interval.
        name: The first part of the metrics' names; two in one Trainer need different ones.
        model: Picks the next-token model (a module or a `StepModel`) out of the LightningModule.
        context: For a model without a state: how many of the last tokens it is given.
        batch_size: How many texts are written at once.
        verbose: Print the table when training ends.

    Attributes:
        history: The metrics of every moment, with its epoch and step; a resumed run continues it.

    Example:
        >>> from lightning_exposure import CanarySet, SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4], seed=0)
        >>> LeakCallback(canaries, samples=500, every_n_epochs=2).history
        []
    """

    def __init__(
        self,
        scanner_or_canaries: Scanner | CanarySet,
        training: str | Iterable[Any] | torch.utils.data.Dataset[Any] | None = None,
        tokenizer: Tokenizer | Any | None = None,
        *,
        samples: int = 1000,
        length: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        prompt: str | None = None,
        every_n_epochs: int = 0,
        seed: int = 0,
        confidence: float = 0.95,
        name: str = "leaks",
        model: ModelOf | None = None,
        context: int | None = None,
        batch_size: int = 256,
        verbose: bool = True,
    ) -> None:
        settings = SamplingSettings(
            samples=samples,
            length=length,
            decoder=Decoder(temperature, top_k, top_p),
            prompt=prompt,
            seed=seed,
            batch_size=batch_size,
            context=context,
            confidence=confidence,
        )
        # What is looked for must be clear now; the texts themselves are read when the tokenizer is known.
        finder_for(scanner_or_canaries, None if training is None else [])
        self.scanner_or_canaries = scanner_or_canaries
        self.training = training
        self.tokenizer = tokenizer
        self.every_n_epochs = every_n_epochs
        self.name = name
        self.verbose = flag("verbose", verbose)
        self._monitor = LeakMonitor(Schedule(every_n_epochs), settings, model=model, name=name)

    @property
    def found(self) -> SampledLeaks | None:
        """What the newest samples have in them; None if there are none yet."""
        return self._monitor.found

    @property
    def history(self) -> list[dict[str, float]]:
        """The metrics of every moment."""
        return self._monitor.history

    @property
    def state_key(self) -> str:
        """Different for callbacks with different names."""
        return f"{type(self).__name__}[{self.name}]"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find what can leak, and write two texts to see whether that works."""
        tokenizer = tokenizer_of(trainer, self.tokenizer)
        texts = None if self.training is None else list(texts_of(self.training, tokenizer).values())
        self._monitor.begin(pl_module, tokenizer, finder_for(self.scanner_or_canaries, texts))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sample every few epochs."""
        now = moment(trainer, epoch_ended=True)
        metrics = self._monitor.after_epoch(pl_module, TrainerSurroundings(trainer), now)
        if metrics is not None:
            show_to_monitors(pl_module, metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sample from the last weights, while the model is still on its device."""
        metrics = self._monitor.finish(pl_module, TrainerSurroundings(trainer), final_moment(trainer))
        if metrics is not None:
            show_at_the_end(trainer, metrics)
        if self.verbose and self.found is not None and trainer.is_global_zero:
            say(trainer, f"{text_table(COLUMNS, self.found.rows())}\n\n{self.found}")

    def add_to_record(self, record: RunRecord) -> None:
        """The numbers of the last samples, among the settings: there is no text in them."""
        if self.history:
            record.settings = {**record.settings, self.name: dict(self.history[-1])}

    def state_dict(self) -> dict[str, Any]:
        """The history: numbers, and no secret."""
        return self._monitor.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a history."""
        self._monitor.load_state_dict(state_dict)
