"""`ReferenceTraining`: how `sanitize` trains when nobody says how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import ConcatDataset, DataLoader

from lightning_exposure._checks import number, whole_number
from lightning_exposure.data.randomness import seeded
from lightning_exposure.data.text import WindowDataset
from lightning_exposure.defences.sanitizing.scoring import TextScorer
from lightning_exposure.errors import DataError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.tokenization.protocol import Tokenizer


@dataclass(frozen=True)
class ReferenceTraining:
    r"""Trains a `LanguageModel` on texts, one per line; every call begins with the same weights.

    Args:
        model: Arguments of `LanguageModel`, apart from the size of the vocabulary.
        tokenizer: What spells the texts; None: one token per character of all texts.
        epochs: How often all texts are read, each time twice: cut into windows in two ways, so that what is shorter
            than half a window is whole in one of them.
        window: How many tokens are read at once.
        batch_size: How many windows are in a batch.
        seed: Of the first weights and of the order of the windows.
        clip: The largest norm of a batch's gradient; None: any.
        accelerator: Of the Trainer.

    Example:
        >>> train = ReferenceTraining({"hidden_size": 8, "num_layers": 1}, epochs=1, window=4, batch_size=8)
        >>> score = train.on(["aa bb", "bb aa"])(["aa bb"] * 4)
        >>> score(["aa bb", "aa"]).shape
        (2,)
    """

    model: Mapping[str, Any] = field(default_factory=lambda: {"hidden_size": 128, "num_layers": 1, "lr": 0.003})
    tokenizer: Tokenizer | None = None
    epochs: int = 5
    window: int = 64
    batch_size: int = 16
    seed: int = 0
    clip: float | None = None
    accelerator: str = "auto"

    def __post_init__(self) -> None:
        """Refuse what no training can be made with."""
        for name in ("epochs", "window", "batch_size"):
            whole_number(name, getattr(self, name), at_least=1)
        whole_number("seed", self.seed, at_least=0)
        if self.clip is not None:
            number("clip", self.clip, above=0)

    def on(self, texts: Sequence[str]) -> ReferenceTraining:
        """The same training with a tokenizer that knows all of these texts, unless it has one."""
        if self.tokenizer is not None:
            return self
        return replace(self, tokenizer=CharTokenizer.from_text("\n", *texts))

    def __call__(self, texts: Sequence[str]) -> TextScorer:
        """Train on these texts.

        Raises:
            DataError: They are too short for one window.
        """
        tokenizer = self.on(texts).tokenizer
        assert tokenizer is not None
        windows = self._windows(tokenizer, texts)
        with seeded(self.seed):
            model = LanguageModel(**{"vocab_size": tokenizer.vocab_size, **self.model})
            order = torch.Generator().manual_seed(self.seed)
            loader = DataLoader(windows, batch_size=self.batch_size, shuffle=True, generator=order)
            trainer = pl.Trainer(
                max_epochs=self.epochs, accelerator=self.accelerator, devices=1, logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                gradient_clip_val=self.clip,
            )  # fmt: skip
            trainer.fit(model, loader)
        # Of the reference architectures only the Transformer cannot read more than it was made for.
        longest = int(model.hparams["max_length"]) if model.hparams["architecture"] == "transformer" else None
        return TextScorer(model, tokenizer, before="\n", context=longest)

    def _windows(self, tokenizer: Tokenizer, texts: Sequence[str]) -> ConcatDataset[Any]:
        """All texts in windows, cut in two ways."""
        # In front of the first line, too, stands what stands in front of every line when it is scored.
        ids = torch.tensor(tokenizer.encode("\n" + "\n".join(texts) + "\n"))
        if len(ids) <= self.window:
            raise DataError(
                f"texts has {len(ids)} tokens in a part; expected more than window={self.window}. Give more texts, "
                "fewer folds or a shorter window."
            )
        cuts = []
        for begin in {0, self.window // 2}:
            whole = torch.cat([ids[begin:], ids[: begin + 1]])
            # Nothing is left out at the end: a line that no model reads could not be found.
            cuts.append(WindowDataset(torch.cat([whole, ids[: (1 - len(whole)) % self.window]]), self.window))
        return ConcatDataset(cuts)
