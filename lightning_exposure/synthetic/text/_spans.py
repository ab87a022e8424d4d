"""Which stretches of one set of texts stand, character for character, in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class SharedSpans(NamedTuple):
    """Which stretches of some texts stand in others.

    Attributes:
        spans: How many different stretches the texts have.
        found: How many of them stand in the others.
        long_enough: For each text, whether it has any.
        touched: For each text, whether at least one of its own stands in the others.
    """

    spans: int
    found: int
    long_enough: NDArray[np.bool_]
    touched: NDArray[np.bool_]


def shared_spans(texts: Sequence[str], others: Sequence[str], span: int) -> SharedSpans:
    """Which stretches of `span` characters of some texts stand in others.

    Every stretch of both gets a number, equal ones the same: those of one character first, then, from those of two
    halves, ever longer ones. Nothing is hashed.

    Args:
        texts: The texts whose stretches are looked for.
        others: The texts that they are looked for in.
        span: How many characters a stretch has.

    Example:
        >>> shared_spans(["abcd", "xyz", "ab"], ["zabcz"], span=3)[:2]
        (3, 1)
    """
    numbers, room = _numbered([*texts, *others], span)
    which = np.repeat(np.arange(len(texts) + len(others)), [len(text) for text in (*texts, *others)])
    whole = room >= span
    here = whole & (which < len(texts))
    there = np.unique(numbers[whole & (which >= len(texts))])
    own, owner = numbers[here], which[here]
    distinct = np.unique(own)
    long_enough, touched = np.zeros(len(texts), dtype=bool), np.zeros(len(texts), dtype=bool)
    long_enough[owner] = True
    touched[owner[np.isin(own, there)]] = True
    return SharedSpans(len(distinct), int(np.isin(distinct, there).sum()), long_enough, touched)


def _numbered(texts: Sequence[str], span: int) -> tuple[Ints, Ints]:
    """A number for the stretch at each character, and how many characters there are from it to the end of its text.

    Stretches that go beyond the end of their text have numbers, too, which mean nothing.
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
    room = [np.arange(len(text), 0, -1) for text in texts]
    numbers, length = _renumbered(codes), 1
    while length < span:
        step = min(length, span - length)  # two that overlap, for what is no power of two
        ahead = np.concatenate([numbers[step:], np.zeros(min(step, len(numbers)), dtype=np.int64)])
        numbers, length = _renumbered(numbers * (len(numbers) + 1) + ahead), length + step
    return numbers, np.concatenate(room) if room else np.zeros(0, dtype=np.int64)


def _renumbered(numbers: Ints) -> Ints:
    """Equal numbers for equal ones, as small as can be."""
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64).reshape(-1)
