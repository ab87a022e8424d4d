"""Is what a Trainer trains on what a callback measures? Looked up in the training data, where they can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_exposure.errors import DataError
from lightning_exposure.measuring.planted import own_tokens, places_of, rows_of
from lightning_exposure.secrets import Canary
from lightning_exposure.tokenization.spelling import Spelling

MOST_EXAMPLES = 100_000
"""Data with more examples than this are not read."""

_BLOCK = 1 << 20
"""Tokens that are searched at once."""

_GAP = np.array([-1], dtype=np.int64)


def readable(dataset: Any) -> bool:
    """Whether reading all of a dataset leaves no trace and takes seconds.

    A list, a `datasets.Dataset` that computes nothing when it is read, a `TensorDataset`, and parts and sums of these.
    What a class of the user's does when it is read is not known: it may draw from a generator of its own.
    """
    if isinstance(dataset, Subset):
        return readable(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(readable, dataset.datasets))
    is_plain = isinstance(dataset, list | tuple | TensorDataset)
    return (is_plain or _is_stored(dataset)) and len(dataset) <= MOST_EXAMPLES


def check_planted(examples: Iterable[Any], spellings: Mapping[Spelling, Sequence[Canary]]) -> None:
    """Refuse training data that hold a canary more or less often than it says, or as other tokens.

    Args:
        examples: All of the training data.
        spellings: How the tokenizer spells each format, and the canaries of that format.

    Raises:
        DataError: Names the first such canary; its text is a secret and stays out of the message.
    """
    wanted = [
        (canary, spelling, own_tokens(spelling, canary.text))
        for spelling in spellings
        for canary in spellings[spelling]
    ]
    if not wanted:
        return
    longest = max(len(prompt) + len(secret) for _, _, (prompt, secret) in wanted)
    found = {canary.id: 0 for canary, _, _ in wanted}
    tokenizer = next(iter(spellings)).tokenizer
    for block in _blocks(_rows(example, tokenizer, longest) for example in examples):
        for canary, spelling, (prompt, secret) in wanted:
            tokens = [*prompt, *secret]
            found[canary.id] += len(places_of(block, tokens, len(prompt), canary.text, spelling.tokenizer))
    for canary, _, _ in wanted:
        if found[canary.id] != canary.copies:
            raise _mismatch(canary, found[canary.id])


def _is_stored(dataset: Any) -> bool:
    """Whether it is a `datasets.Dataset` without a transform; the package is not imported for the question."""
    is_one = any(
        base.__module__.startswith("datasets.") and base.__name__ == "Dataset" for base in type(dataset).__mro__
    )
    return is_one and getattr(dataset, "format", {}).get("type") != "custom"


def _rows(example: Any, tokenizer: Any, wanted: int) -> list[NDArray[np.int64]]:
    """The tokens that the model reads of an example; masks, labels and targets repeat them, and would count twice."""
    if isinstance(example, Mapping) and "input_ids" in example:
        example = example["input_ids"]
    parts = example.values() if isinstance(example, Mapping) else [example]
    rows = rows_of(example, tokenizer, wanted)
    return rows if any(isinstance(part, str) for part in parts) else sorted(rows, key=len)[-1:]


def _blocks(rows: Iterable[list[NDArray[np.int64]]]) -> Iterator[NDArray[np.int64]]:
    """Many rows as few long ones, with something between them that is no token."""
    parts: list[NDArray[np.int64]] = []
    size = 0
    for some in rows:
        for row in some:
            parts += [row, _GAP]
            size += len(row) + 1
        if size >= _BLOCK:
            yield np.concatenate(parts)
            parts, size = [], 0
    if parts:
        yield np.concatenate(parts)


def _mismatch(canary: Canary, there: int) -> DataError:
    times = {0: "not at all", 1: "once"}.get(there, f"{there} times")
    copies = f"{canary.copies} {'copy' if canary.copies == 1 else 'copies'}"
    why = " (it is held out)" if canary.held_out else ""
    return DataError(
        f"canaries: {canary.id!r} is in the training data {times} as the tokens that are measured; expected "
        f"{copies}{why}. Insert the same CanarySet with lightning_exposure.data.inject_examples, once, and encode it "
        "with the tokenizer that is measured with. If the data are cut or packed, so that some copies cannot be whole, "
        "pass check_data=False."
    )
