"""The tokens of a canary in an example of the training data: they have to be a run in it.

What surrounds them is the user's business: padding, special tokens, a template, text before and behind. With text
before it the first word of a prompt may be spelt by other tokens (`"my"`, `" my"`); then its letters have to be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.tokenization.protocol import HasSpans, Tokenizer, capability, surroundings_of
from lightning_exposure.tokenization.spelling import Spelling

_LOOK_BACK = 8
"""How many tokens more than were left out may spell the first word of a prompt."""


def find_run(row: NDArray[np.int64], run: Sequence[int]) -> NDArray[np.int64]:
    """Where in a row of tokens a run of tokens begins.

    >>> find_run(np.array([1, 2, 1, 2, 3, 1, 2]), [1, 2]).tolist(), find_run(np.array([1]), [1, 2]).tolist()
    ([0, 2, 5], [])
    """
    if len(run) > len(row):
        return np.empty(0, dtype=np.int64)
    found = np.arange(len(row) - len(run) + 1)
    for offset, token in enumerate(run):
        found = found[row[found + offset] == token]
    return found


def own_tokens(spelling: Spelling, text: str) -> tuple[list[int], list[int]]:
    """The tokens of a canary as the tree has them: what is read, without a template before it, and what is measured."""
    measured = list(tokens_of(spelling.paths([text])[0]))
    around = surroundings_of(spelling.tokenizer)
    others = len(around.lead)
    has_spans = capability(spelling.tokenizer, HasSpans)
    if around.before and has_spans is not None:
        others = sum(start < len(around.before) for _, start, _ in has_spans.spans(text))
    return list(spelling.root[others:]), measured


def rows_of(example: Any, tokenizer: Tokenizer, wanted: int) -> list[NDArray[np.int64]]:
    """The rows of token ids in an example; of one that holds texts, those that the tokenizer makes of them.

    Nothing at all if there is neither: then there is no telling what the model reads.
    """
    rows, texts = [*_integers(example)], [*_texts(example)]
    # Numbers that are too few to be the tokens (a label beside a text) do not speak for them.
    if texts and not any(len(row) >= wanted for row in rows):
        rows = []
        for text in texts:
            ids: list[int] = []
            with suppress(Exception):  # what the tokenizer cannot spell is not what is measured
                ids = list(tokenizer.encode(text))
            rows.append(np.array(ids, dtype=np.int64))
    # Inputs and targets, one place on: together they are the whole row.
    joined = [
        np.append(one, other[-1])
        for one in rows
        for other in rows
        if len(one) == len(other) > 1 and np.array_equal(one[1:], other[:-1])
    ]
    return rows + joined


def _integers(value: Any) -> Iterator[NDArray[np.int64]]:
    """All rows of integers in a nested structure."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy() if not value.is_floating_point() and not value.is_complex() else None
    if isinstance(value, bytes | bytearray):
        value = np.frombuffer(value, dtype=np.uint8)
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iu" and value.ndim:
            yield from value.reshape(-1, value.shape[-1]).astype(np.int64)
            if value.ndim > 1:
                yield value.reshape(-1).astype(np.int64)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _integers(part)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if value and all(isinstance(entry, int | np.integer) or _is_scalar(entry) for entry in value):
            yield np.array([int(entry) for entry in value], dtype=np.int64)
        else:
            for part in value:
                yield from _integers(part)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _integers(vars(value))


def _is_scalar(entry: Any) -> bool:
    """Whether it is an integer in a tensor of its own."""
    return isinstance(entry, torch.Tensor) and entry.dim() == 0 and not entry.is_floating_point()


def _texts(value: Any) -> Iterator[str]:
    """All texts in a nested structure."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for part in value:
            yield from _texts(part)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _texts(vars(value))


def places_of(row: NDArray[np.int64], tokens: list[int], prompt: int, text: str, tokenizer: Tokenizer) -> set[int]:
    """Where in a row of tokens those of a canary end; the prompt's first word may be spelt in another way.

    Args:
        row: Of tokens.
        tokens: Of the canary.
        prompt: How many of them are read and not measured.
        text: The canary's.
        tokenizer: That spells it.
    """
    ends = {place + len(tokens) for place in find_run(row, tokens).tolist()}
    for left_out in range(1, prompt + 1):
        head = _before(tokens[left_out:], text, tokenizer)
        if head is None or len(head.split()) > 1:
            break
        for place in find_run(row, tokens[left_out:]).tolist():
            end = place + len(tokens) - left_out
            if end not in ends and _ends_with(row[:place], head, left_out, tokenizer):
                ends.add(end)
    return ends


def _before(tokens: list[int], text: str, tokenizer: Tokenizer) -> str | None:
    """What stands before some tokens in a text that they are the end of; None if they are not."""
    end = tokenizer.decode(tokens)
    for spelt in (end, end.lstrip()):  # some tokenizers write a space before the first of their tokens
        if text.endswith(spelt):
            return text[: len(text) - len(spelt)].strip()
    return None


def _ends_with(row: NDArray[np.int64], head: str, left_out: int, tokenizer: Tokenizer) -> bool:
    """Whether the last of some tokens spell a text."""
    if not head:
        return True
    for count in range(1, min(len(row), left_out + _LOOK_BACK) + 1):
        with suppress(Exception):  # padding and the like may be no token of the tokenizer at all
            if tokenizer.decode(row[len(row) - count :].tolist()).strip().endswith(head):
                return True
    return False
