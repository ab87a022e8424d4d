"""`TextDataModule`: a corpus in windows of tokens, with canaries in its training part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_exposure._checks import OutOfRangeError, choice, number, refusal, whole_number
from lightning_exposure.data.corpora import python_topics, read_text
from lightning_exposure.data.injection import Windows, inject_before
from lightning_exposure.data.packages import OnPytorchLightning, on_package, package_named
from lightning_exposure.errors import DataError
from lightning_exposure.secrets import CanarySet
from lightning_exposure.tokenization import CharTokenizer, WordTokenizer

_WORD = re.compile(r"\n|\S+")
_LONGEST_PATH = 1024

# For type checkers the behaviour is a data module; in truth it is put on the base class of either package.
if TYPE_CHECKING:
    _Base = pl.LightningDataModule
else:
    _Base = object


class WindowDataset(Dataset[tuple[Tensor, Tensor]]):
    """Token ids in windows: the inputs of item `i` are ids `i * window` to `(i + 1) * window - 1`.

    The targets are the ids that follow them, one place on. So the inputs do not overlap, and every id but the first
    is a target once. What does not fill a window at the end is left out.

    Example:
        >>> windows = WindowDataset(torch.arange(8), window=3)
        >>> len(windows), windows[1]
        (2, (tensor([3, 4, 5]), tensor([4, 5, 6])))
    """

    def __init__(self, ids: Tensor, window: int) -> None:
        self.ids = ids
        self.window = window

    def __len__(self) -> int:
        """How many windows there are."""
        return max(0, (len(self.ids) - 1) // self.window)

    def __getitem__(self, index: int, /) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a window."""
        if not 0 <= index < len(self):
            raise refusal("index", index, f"one of the {len(self)} windows, from 0 on", error=OutOfRangeError)
        start = index * self.window
        return self.ids[start : start + self.window], self.ids[start + 1 : start + self.window + 1]


class TextData(_Base):
    """What `TextDataModule` does, without a base class."""

    on_pytorch_lightning = OnPytorchLightning()
    tokenizer: CharTokenizer | WordTokenizer
    """The tokenizer, after `setup`."""

    def __init__(
        self,
        text_or_path: str | Path | None = None,
        *,
        level: Literal["char", "word"] = "char",
        window: int = 64,
        batch_size: int = 128,
        val_fraction: float = 0.1,
        canaries: CanarySet | str | Path | None = None,
        seed: int = 0,
        num_workers: int = 0,
        whole_canaries: bool = False,
        words: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        if words is not None and level != "word":
            raise refusal("words", words, f"None with level={level!r}", "It is for level='word' only.")
        settings = {
            "level": choice("level", level, ("char", "word")),
            "window": whole_number("window", window, at_least=1),
            "batch_size": whole_number("batch_size", batch_size, at_least=1),
            "val_fraction": number("val_fraction", val_fraction, at_least=0, below=1),
            "seed": whole_number("seed", seed, at_least=0),
            "num_workers": whole_number("num_workers", num_workers, at_least=0),
            "whole_canaries": bool(whole_canaries),
            "words": None if words is None else whole_number("words", words, at_least=1),
            "shuffle": bool(shuffle),
            "drop_last": bool(drop_last),
        }
        # The text and the canaries are not saved: they are large, and secrets.
        self.save_hyperparameters(settings)
        self.canaries = canaries if isinstance(canaries, CanarySet | None) else CanarySet.load(canaries)
        self._source = text_or_path
        self._train: WindowDataset | None = None
        self._val: WindowDataset | None = None
        self._order: torch.Generator | None = None
        self._order_state: Tensor | None = None

    @classmethod
    def under(cls, package: str) -> type[TextDataModule]:
        """The same class for the Trainer of a package, "lightning" or "pytorch_lightning"."""
        module = package_named(package)
        if module is pl:
            return TextDataModule
        return on_package(TextData, "LightningDataModule", module, TextDataModule)

    def setup(self, stage: str | None = None) -> None:
        """Read the text, insert the canaries, make the tokenizer and cut the windows; only once.

        Raises:
            DataError: The file is missing, empty, binary or not UTF-8, or too short for the settings.
        """
        if self._train is not None:
            return
        settings = self.hparams
        train, val = _split(_text_of(self._source), settings["val_fraction"])
        canaries = self.canaries or CanarySet([])
        self.tokenizer = self._make_tokenizer([train, val], canaries)
        self._train = self._cut(self._with_canaries(train, canaries), "training")
        if settings["val_fraction"]:
            self._val = self._cut(val, "validation")

    def planted_examples(self) -> dict[str, list[Any]]:
        """What the training data hold of each canary that is not held out, by its text: all tokens, in one row.

        Raises:
            DataError: It is not set up yet.
        """
        if self._train is None:
            raise DataError(
                "setup() was not called yet; expected before asking what is planted. Call it, as a Trainer does."
            )
        return {canary.text: [self._train.ids] for canary in self.canaries or () if canary.copies}

    def _make_tokenizer(self, texts: Sequence[str], canaries: CanarySet) -> CharTokenizer | WordTokenizer:
        """A tokenizer that knows every secret of every format, not only those that are in the text."""
        secrets = [text for format_ in canaries.by_format() for text in format_.covering()]
        if self.hparams["level"] == "char":
            return CharTokenizer.from_text(*texts, *secrets, *canaries.texts, " ")
        needed = WordTokenizer.from_text("\n", *secrets, *canaries.texts).vocabulary
        size = self.hparams["words"]
        words = WordTokenizer.from_text(*texts, size=size, unknown=size is not None)
        return WordTokenizer([*words.vocabulary, *needed], unknown=size is not None)

    def _with_canaries(self, text: str, canaries: CanarySet) -> str:
        settings = self.hparams
        window = settings["window"]
        words = settings["level"] == "word"
        starts = [match.start() for match in _WORD.finditer(text)] if words else range(len(text))
        if len(starts) <= window:
            raise DataError(
                f"text_or_path has a training part of {len(starts)} tokens; expected more than window={window}. Give a "
                "longer text or a shorter window."
            )
        windows = None
        if settings["whole_canaries"]:
            sizes = {canary.id: len(self.tokenizer.encode(canary.text)) for canary in canaries}
            windows = Windows(window, starts, sizes, separator=0 if words else 1)
        # What does not fill a window at the end is left out, so no canary goes there.
        return inject_before(text, canaries, settings["seed"], end=starts[-window], windows=windows)

    def _cut(self, text: str, part: str) -> WindowDataset:
        windows = WindowDataset(torch.tensor(self.tokenizer.encode(text)), self.hparams["window"])
        if not len(windows):
            raise DataError(
                f"text_or_path has a {part} part of {len(windows.ids)} tokens; expected more than "
                f"window={self.hparams['window']}. Give a longer text, a shorter window or another val_fraction."
            )
        return windows

    def state_dict(self) -> dict[str, Any]:
        """Where the order of the windows is, so that a run that goes on gets the order it would have had."""
        return {} if self._order is None else {"order": self._order.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave, for the loaders that are asked for from now on."""
        self._order_state = state_dict.get("order")

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Batches of (inputs, targets), each `(batch, window)`, from the part with the canaries."""
        settings = self.hparams
        return self._loader(self._train, shuffle=settings["shuffle"], drop_last=settings["drop_last"])

    def val_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]] | list[Any]:
        """The same from the part without canaries; nothing with `val_fraction=0`."""
        return self._loader(self._val) if self.hparams["val_fraction"] else []

    def _loader(
        self, windows: WindowDataset | None, *, shuffle: bool = False, drop_last: bool = False
    ) -> DataLoader[tuple[Tensor, Tensor]]:
        if windows is None:
            raise DataError(
                "setup() was not called yet; expected before asking for a loader. Call it, as a Trainer does."
            )
        generator = torch.Generator().manual_seed(self.hparams["seed"]) if shuffle else None
        if generator is not None:
            if self._order_state is not None:
                generator.set_state(self._order_state)
            self._order = generator
        return DataLoader(
            windows,
            batch_size=self.hparams["batch_size"],
            shuffle=shuffle,
            drop_last=drop_last,
            num_workers=self.hparams["num_workers"],
            persistent_workers=self.hparams["num_workers"] > 0,
            generator=generator,
        )


class TextDataModule(TextData, pl.LightningDataModule):
    """A corpus in windows of tokens, with canaries in its training part.

    Items are pairs `(inputs, targets)` of `window` ids each; the targets are the ids that follow the inputs, one
    place on. The first part of the text is for training, the rest for validation.

    Canaries are inserted into the raw training text, before it is cut. As in the paper, a cut can go through a
    canary, and the model then never sees that copy as a whole. With `whole_canaries=True` a copy that would be cut
    goes to the next place between words where it is not.

    The vocabulary holds every character or word of every secret of the canaries' formats, so that all of them can be
    measured, also those that are not in the text.

    For a Trainer of `pytorch_lightning`, use the class `TextDataModule.under("pytorch_lightning")`.

    Args:
        text_or_path: The text itself or the path of a UTF-8 file: a string with a line break in it, or of more than
            1,024 characters, is a text, any other is a path. None: the topics of Python's own `help()`, half a
            megabyte of English that needs no download.
        level: "char" for one token per character, "word" for one per word.
        window: How many tokens the model reads at once.
        batch_size: How many windows are in a batch.
        val_fraction: Which part of the text is for validation; 0 for none.
        canaries: What to insert, or the path of a file that `CanarySet.save` wrote; those held out stay out.
        seed: Where the places of the canaries and the order of the windows come from.
        num_workers: How many processes load batches.
        whole_canaries: Never let a window cut a canary.
        words: With level="word": keep this many of the most frequent ones, besides those of the canaries; any other
            becomes `<unk>`. None: keep all.
        shuffle: Whether the training windows come in random order.
        drop_last: Whether to leave out the last training batch if it is not full.

    Attributes:
        tokenizer: A `CharTokenizer` or `WordTokenizer`, after `setup`.
        canaries: The canaries, or None.

    Example:
        >>> data = TextDataModule(window=32, batch_size=4)
        >>> data.setup()
        >>> inputs, targets = next(iter(data.train_dataloader()))
        >>> inputs.shape, bool((inputs[:, 1:] == targets[:, :-1]).all())
        (torch.Size([4, 32]), True)
        >>> data.tokenizer.decode(data.tokenizer.encode("hello"))
        'hello'
    """


def _text_of(source: str | Path | None) -> str:
    if source is None:
        return python_topics()
    if isinstance(source, str) and ("\n" in source or len(source) > _LONGEST_PATH):
        return source
    if not isinstance(source, str | Path):
        raise refusal("text_or_path", source, "a text or a path", with_type=True)
    return read_text(source)


def _split(text: str, fraction: float) -> tuple[str, str]:
    """The training and the validation part of a text, parted between two words."""
    if not fraction:
        return text, ""
    middle = round(len(text) * (1 - fraction))
    space = re.compile(r"\s").search(text, middle)
    end = middle if space is None else space.start()
    return text[:end], text[end:]
