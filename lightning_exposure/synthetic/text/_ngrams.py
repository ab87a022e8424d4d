"""`NgramModel`: how likely each character of a text is, by the characters before it, as counted in other texts.

All windows of up to `order` characters are kept as a tree in sorted arrays: a node of depth n is a window of n
characters, its key says which node of depth n - 1 it goes on from, and with which character. Nothing is hashed: two
windows have one number if and only if they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import number, whole_number

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_UNSEEN = -1


@dataclass(frozen=True)
class _Depth:
    """All windows of one length.

    Attributes:
        keys: Sorted: the window without its last character, times the size of the alphabet, plus that character.
        counts: How often each occurs.
        followed: How often each is followed by a character of the same text.
        followers: By how many different ones.
    """

    keys: Ints
    counts: Ints
    followed: Ints
    followers: Ints

    def find(self, before: Ints, characters: Ints, letters: int) -> Ints:
        """The numbers of windows, given those without the last character, and that; -1 where there is none."""
        wanted = before * letters + characters
        places = np.searchsorted(self.keys, wanted)
        there = (before != _UNSEEN) & (self.keys[np.minimum(places, len(self.keys) - 1)] == wanted)
        return np.where(there, places, _UNSEEN)


class NgramModel:
    """Characters given up to `order - 1` characters before them: absolute discounting, interpolated down to uniform.

    With c the characters before, w the next one and c' the same as c without its first character,

        p(w | c) = (max(0, N(cw) - d) + d * D(c) * p(w | c')) / N(c)

    where N(cw) counts, N(c) is the sum of that over all w, D(c) is how many different w follow c, and d is the
    discount. If c never occurs, p(w | c) = p(w | c'); without any characters before, c' stands for the uniform
    distribution over the alphabet. Counts do not go from one text to the next.

    Args:
        texts: What is counted: strings, or lists of what counts as a character.
        alphabet: Further texts, whose characters may be asked about.
        order: The longest windows that are counted.
        discount: d, above 0, so that everything has a chance, and at most 1.

    Example:
        >>> model = NgramModel(["abab", "ab"], order=2)
        >>> (2 ** -model.bits("ab")).round(4).tolist()  # 3 of 6, and 3 of 3 behind "a"
        [0.5, 0.875]
    """

    def __init__(
        self,
        texts: Sequence[Sequence[str]],
        alphabet: Sequence[Sequence[str]] = (),
        *,
        order: int = 6,
        discount: float = 0.75,
    ) -> None:
        self.order = whole_number("order", order, at_least=1)
        self.discount = number("discount", discount, above=0, at_most=1)
        characters = sorted({character for text in (*texts, *alphabet) for character in text})
        self._code = {character: place for place, character in enumerate(characters)}
        self._depths: list[_Depth] = []
        codes, room = self._read(texts)
        windows: Ints = np.zeros(len(codes), dtype=np.int64)  # of no characters: all are the same
        for length in range(1, self.order + 1):
            starts = np.flatnonzero(room >= length)
            if not len(starts):
                break
            keys, numbers, counts = np.unique(
                windows[starts] * len(self._code) + codes[starts + length - 1], return_inverse=True, return_counts=True
            )
            windows = np.full(len(codes), _UNSEEN, dtype=np.int64)
            windows[starts] = numbers
            parents = keys // len(self._code)
            if self._depths:
                self._depths[-1] = _with_followers(self._depths[-1], parents, counts)
            self._depths.append(_Depth(keys, counts, np.zeros_like(counts), np.zeros_like(counts)))

    def bits(self, text: Sequence[str], *, order: int | None = None) -> Floats:
        """What each character of a text costs, `-log2 p`, given those before it; with at most `order`, if it is given.

        Raises:
            KeyError: A character is neither in the texts nor in the alphabet.
        """
        (costs,) = self.bits_by_order([text])
        chosen: Floats = costs[(self.order if order is None else order) - 1]
        return chosen

    def bits_by_order(self, texts: Sequence[Sequence[str]]) -> list[Floats]:
        """The same of several texts and for every order: rows are orders from 1 on, columns are characters."""
        codes, room = self._read(texts)
        gone = np.concatenate([np.arange(len(text)) for text in texts]) if texts else np.zeros(0, dtype=np.int64)
        chances = np.full(len(codes), 1.0 / max(1, len(self._code)))
        costs = np.empty((self.order, len(codes)))
        before: Ints = np.zeros(len(codes), dtype=np.int64)
        for row, depth in enumerate(self._depths):
            starts = np.flatnonzero(room > row)
            found = np.full(len(codes), _UNSEEN, dtype=np.int64)
            found[starts] = depth.find(before[starts], codes[starts + row], len(self._code))
            ends = starts + row  # the characters that have `row` others before them
            chances[ends] = self._mixed(row, before[starts], found[starts], chances[ends])
            costs[row] = -np.log2(chances)
            before = found
        costs[len(self._depths) :] = -np.log2(chances)
        return np.split(costs, np.flatnonzero(gone == 0)[1:], axis=1) if len(codes) else []

    def _mixed(self, row: int, before: Ints, found: Ints, shorter: Floats) -> Floats:
        """Chances given `row` characters before, from those given one fewer."""
        if row == 0:
            total, kinds = (
                np.full(len(found), self._depths[0].counts.sum()),
                np.full(len(found), len(self._depths[0].keys)),
            )
        else:
            known = before != _UNSEEN
            above = self._depths[row - 1]
            total, kinds = np.where(known, above.followed[before], 0), np.where(known, above.followers[before], 0)
        counted = np.where(found != _UNSEEN, self._depths[row].counts[found], 0)
        kept = np.maximum(0.0, counted - self.discount)
        mixed = (kept + self.discount * kinds * shorter) / np.maximum(1, total)
        return np.where(total > 0, mixed, shorter)

    def _read(self, texts: Sequence[Sequence[str]]) -> tuple[Ints, Ints]:
        """The characters of all texts as numbers; and for each, how many there are from it to the end of its text."""
        codes = np.fromiter((self._code[character] for text in texts for character in text), dtype=np.int64)
        room = [np.arange(len(text), 0, -1) for text in texts]
        return codes, np.concatenate(room) if room else np.zeros(0, dtype=np.int64)


def _with_followers(depth: _Depth, parents: Ints, counts: Ints) -> _Depth:
    size = len(depth.keys)
    followed = np.bincount(parents, weights=counts, minlength=size).astype(np.int64)
    return _Depth(depth.keys, depth.counts, followed, np.bincount(parents, minlength=size).astype(np.int64))
