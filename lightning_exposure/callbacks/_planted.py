"""Is what the data module plants what a callback measures?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.data import CanaryDataModule
from lightning_exposure.data.text import TextData
from lightning_exposure.errors import DataError
from lightning_exposure.measuring.planted import find_run, own_tokens, places_of, rows_of
from lightning_exposure.secrets import Canary, CanarySet
from lightning_exposure.tokenization.spelling import Spelling


def check_copies(data: Any, canaries: CanarySet) -> None:
    """Refuse canaries that a data module of ours plants less or more often than they say.

    Args:
        data: The trainer's data module; of another's nothing is known.
        canaries: Those that a callback measures. One that is held out, or has no repetitions, must not be planted.

    Raises:
        DataError: Names the canary.
    """
    if not _is_ours(data):
        return
    copies: dict[str, int] = {}
    for canary in _canaries_of(data):
        copies[canary.text] = copies.get(canary.text, 0) + canary.copies
    for canary in canaries:
        there = copies.get(canary.text, 0)
        if there != canary.copies:
            what = "not planted" if there == 0 else f"planted {there} times"
            raise DataError(
                f"canaries has {canary.id!r}, {what} by the data module; expected {canary.copies} "
                f"{'copy' if canary.copies == 1 else 'copies'} in the training data. Give the same CanarySet to both "
                "(the same formats, repetitions and seed)."
            )


def check_tokens(data: Any, spelling: Spelling, canaries: Sequence[Canary]) -> None:
    """Refuse a data module of ours that plants other tokens than are measured.

    Args:
        data: The trainer's data module; of another's nothing is known.
        spelling: How the callback's tokenizer spells the canaries' format.
        canaries: Those of the format.

    Raises:
        DataError: Names the canary, and says how much of it is there.
    """
    if not _is_ours(data):
        return
    examples = data.planted_examples()
    for canary in canaries:
        if not canary.copies:
            continue
        for example in examples.get(canary.text, []):
            prompt, secret = own_tokens(spelling, canary.text)
            tokens = prompt + secret
            rows = rows_of(example, spelling.tokenizer, len(tokens))
            if rows and not any(places_of(row, tokens, len(prompt), canary.text, spelling.tokenizer) for row in rows):
                _refuse(canary, tokens, rows, by_encode=isinstance(data, CanaryDataModule))


def _is_ours(data: Any) -> bool:
    return isinstance(data, CanaryDataModule | TextData)


def _canaries_of(data: Any) -> Iterator[Canary]:
    """What a data module plants, and what the one inside it does."""
    yield from data.canaries or ()
    wrapped = getattr(data, "wrapped", None)
    if _is_ours(wrapped):
        yield from _canaries_of(wrapped)


def _refuse(canary: Canary, tokens: list[int], rows: Sequence[NDArray[np.int64]], *, by_encode: bool) -> None:
    """Say how much of a canary is there; its text is a secret and stays out of the message."""
    most = next((n for n in range(len(tokens), 0, -1) if any(len(find_run(row, tokens[:n])) for row in rows)), 0)
    there = f"only the first {most} of them are there" if most else "not even the first of them is there"
    where = "what encode makes of it" if by_encode else "the data module's training text"
    raise DataError(
        f"canaries has {canary.id!r}, which is planted, but not as it is measured; expected its {len(tokens)} tokens, "
        f"as the callback's tokenizer spells it, in a row in {where}, but {there}. Use one tokenizer for both, leave "
        "the text as it is (case, spaces), and cut nothing off."
    )
