"""What `sanitize` is given, as samples: the lines of a text, a list of texts, or the items of a dataset."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from lightning_exposure._checks import choice, refusal
from lightning_exposure.data.corpora import read_text
from lightning_exposure.defences.sanitizing._grouping import Symbols, letters_and_digits
from lightning_exposure.errors import DataError

Unit = Literal["line", "paragraph"]
"""What a sample of a text is."""

_LONGEST_PATH = 1024
_PARAGRAPH = re.compile(r"(?:[^\n]*\S[^\n]*(?:\n|$))+")
_LINE = re.compile(r"[^\n]*\S[^\n]*")


@dataclass(frozen=True)
class Samples:
    """Samples, and where they come from.

    Attributes:
        items: The samples, as they were given.
        text: The text that they are parts of; None: they were given one by one.
        places: Where each begins and ends in the text.
        symbols: What is compared to find copies.
        are_texts: Whether samples are texts; otherwise they are token ids.
    """

    items: Sequence[Any]
    text: str | None
    places: tuple[tuple[int, int], ...]
    symbols: Sequence[Symbols]
    are_texts: bool

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.items)

    def lines(self) -> list[int]:
        """The number of the line in which each sample begins, from 1; its own number, if there is no text."""
        if self.text is None:
            return list(range(1, len(self) + 1))
        breaks = np.array([match.start() for match in re.finditer("\n", self.text)], dtype=np.int64)
        starts = np.array([start for start, _ in self.places], dtype=np.int64)
        numbers: list[int] = (np.searchsorted(breaks, starts) + 1).tolist()
        return numbers

    def without(self, removed: set[int]) -> str | list[Any]:
        """The text without some samples, each with its line break; the other samples, if there is no text."""
        if self.text is None:
            return [item for number, item in enumerate(self.items) if number not in removed]
        kept, done = [], 0
        for number in sorted(removed):
            start, end = self.places[number]
            kept.append(self.text[done:start])
            done = min(end + 1, len(self.text)) if self.text[end : end + 1] == "\n" else end
        return "".join([*kept, self.text[done:]])


def samples_of(
    given: Any, unit: Unit, text_of: Callable[[Any], str] | None, tokenizer: Any, *, argument: str = "dataset_or_texts"
) -> Samples:
    """The samples in what was given.

    Args:
        given: A path, a text, texts, or a dataset with a length.
        unit: What a sample of a text is.
        text_of: Gives the text of an item.
        tokenizer: Spells items that are token ids.
        argument: What it is called in messages.

    Raises:
        ArgumentError: It is none of these.
        DataError: An item is neither a text nor token ids, or a file cannot be read.
    """
    choice("unit", unit, get_args(Unit))
    if isinstance(given, str | Path):
        is_text = isinstance(given, str) and ("\n" in given or len(given) > _LONGEST_PATH)
        return _parts_of(str(given) if is_text else read_text(given), unit)
    if not hasattr(given, "__len__") or not hasattr(given, "__getitem__") or isinstance(given, dict | bytes):
        remedy = "Make a list of the items of an iterable dataset."
        raise refusal(argument, given, "a path, a text, a list of texts, or a dataset with a length", remedy)
    items = [given[number] for number in range(len(given))]
    if text_of is not None:
        items = [text_of(item) for item in items]
    are_texts = all(isinstance(item, str) for item in items)
    symbols = [
        letters_and_digits(item) if are_texts else _symbols_of(item, n, tokenizer) for n, item in enumerate(items)
    ]
    if not are_texts:
        items = [_ids_of(item) for item in items]
    return Samples(items, None, (), symbols, are_texts)


def _parts_of(text: str, unit: Unit) -> Samples:
    """The lines or paragraphs of a text that have anything in them."""
    places = []
    for match in (_LINE if unit == "line" else _PARAGRAPH).finditer(text):
        start, end = match.span()
        places.append((start, end - 1 if text[end - 1] == "\n" else end))
    items = [text[start:end] for start, end in places]
    return Samples(items, text, tuple(places), [letters_and_digits(item) for item in items], True)


def _symbols_of(item: Any, number: int, tokenizer: Any) -> Symbols:
    """What is compared of token ids: their text, if that is known, since only in it digits can be told from letters."""
    ids = _ids_of(item)
    if ids is None:
        raise DataError(
            f"dataset_or_texts[{number}] is of type {type(item).__name__}; expected a text, a row of token ids, or a "
            "pair of inputs and targets. Say with text_of=... how to get the text of an item."
        )
    return np.array(ids, dtype=np.int64) if tokenizer is None else letters_and_digits(tokenizer.decode(ids))


def _ids_of(item: Any) -> list[int] | None:
    """A row of token ids: a tensor, an array or a list; or inputs, followed by the last of the targets."""
    if isinstance(item, tuple) and len(item) == 2:
        inputs, targets = map(_ids_of, item)
        if inputs is None or targets is None or len(inputs) != len(targets):
            return None
        return [*inputs, *targets[-1:]]
    values = item.tolist() if hasattr(item, "tolist") else item
    if isinstance(values, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in values):
        return values
    return None
