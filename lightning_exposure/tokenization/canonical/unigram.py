"""The canonical paths of a Unigram model: those whose tokens have the largest sum of scores.

What must be remembered of a path is how good its competitors are that end elsewhere: for each token that begins in the
text of the path and reaches beyond its end, how much better or worse the best way to that token is than the path. Such
a token is a node of the trie, the text that it has in common with the end of the path. When the path goes on by a
token, its competitors go on as well, over the same text, and the path is given up if one of them is better there.

How good a competitor is, is a real number, so that there are endlessly many pasts: two halves of a long number may
be cut in two ways each, and only the sum of all decides. To keep their number finite, competitors can be made a little
worse than they are, down to the next multiple of a grid. Fewer paths are then given up, and never a canonical one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization._vocabulary import FittingTokens, Vocabulary
from lightning_exposure.tokenization.canonical.rule import FRESH, Integers

Floats = NDArray[np.float64]
Competitors = tuple[tuple[int, float], ...]
"""The competitors: the number of a node, and how much better the best way to it is than the path."""

_EQUAL = 1e-6
"""Sums of scores that are closer than this may be equal: rounding depends on where a sum begins."""


def scores_of(model: Mapping[str, Any]) -> list[float]:
    """The score of each token, from the model's part of a `tokenizer.json`."""
    return [float(score) for _, score in model["vocab"]]


class SegmentationRule:
    """The paths that a Unigram model holds best.

    Args:
        fitting: The tokens that fit in the texts.
        scores: The score of each token.
        grid: Competitors are made worse, down to a multiple of this.
    """

    def __init__(self, fitting: FittingTokens, scores: Sequence[float], grid: float = 1e-7) -> None:
        self._fitting = fitting
        self._words = _Words(fitting.vocabulary, scores)
        self._grid = grid
        self._tables: dict[int, _Table] = {}
        self._pasts: list[Competitors] = []
        self._numbers: dict[Competitors, int] = {}

    def children(self, state: int, past: int, /) -> tuple[Integers, Integers, Integers]:
        """The tokens that may follow, given the competitors (the past)."""
        if state not in self._tables:
            self._tables[state] = _Table(self._fitting, state, self._words)
        table = self._tables[state]
        before = self._pasts[past] if past != FRESH else ()
        # The best way to the end of each token, and to each token that may begin within it.
        ends, starts = table.ends.copy(), table.starts.copy()
        for node, lead in before:
            rival_ends, rival_starts = table.rivals(node)
            np.maximum(ends, lead + rival_ends, out=ends, where=table.inside)
            np.maximum(starts, lead + rival_starts, out=starts, where=table.inside[table.start_rows])
        kept = np.flatnonzero(table.scores > ends - _EQUAL)
        pasts = self._pasts_after(table, before, kept, starts - table.scores[table.start_rows])
        order = np.argsort(table.tokens[kept])
        return table.tokens[kept][order], table.targets[kept][order], pasts[order]

    def _pasts_after(self, table: _Table, before: Competitors, kept: Integers, leads: Floats) -> Integers:
        """The competitors of the paths that go on by the tokens that were kept."""
        rivals: list[list[tuple[int, float]]] = [[] for _ in range(len(table.tokens))]
        # One that is no better than a new beginning at the end of the path, whatever follows, is none any more.
        for start in np.flatnonzero(leads + table.start_gains > -_EQUAL).tolist():
            rivals[table.start_rows[start]].append((int(table.start_nodes[start]), float(leads[start])))
        for node, lead in before:
            for row, longer in table.carried(node):
                beyond = lead - float(table.scores[row])
                if table.inside[row] and beyond + self._words.gain(longer) > -_EQUAL:
                    rivals[row].append((longer, beyond))
        needed = ~self._fitting.forgets[table.targets[kept]]
        pasts = np.full(len(kept), FRESH, dtype=np.int64)
        pasts[needed] = [self._number(rivals[row]) for row in kept[needed].tolist()]
        return pasts

    def _number(self, rivals: list[tuple[int, float]]) -> int:
        if not rivals:
            return FRESH
        key = tuple(sorted((node, math.floor(lead / self._grid) * self._grid) for node, lead in rivals))
        number = self._numbers.setdefault(key, len(self._pasts))
        if number == len(self._pasts):
            self._pasts.append(key)
        return number


class _Words:
    """Tokens by their text, the texts that longer tokens begin with (nodes), and the best score of any text."""

    def __init__(self, vocabulary: Vocabulary, scores: Sequence[float]) -> None:
        self.scores: dict[bytes, float] = {}
        self.numbers: dict[bytes, int] = {}
        self.nodes: list[bytes] = []
        self.below: list[list[bytes]] = []  # for each node, what makes it a longer token
        for token, text in vocabulary.texts.items():
            self.scores[text] = max(scores[token], self.scores.get(text, -math.inf))
        for text in self.scores:
            for length in range(1, len(text)):
                node = self.numbers.setdefault(text[:length], len(self.nodes))
                if node == len(self.nodes):
                    self.nodes.append(text[:length])
                    self.below.append([])
                self.below[node].append(text[length:])
        self._best: dict[bytes, float] = {b"": 0.0}
        self._gains: dict[int, float] = {}

    def best(self, text: bytes) -> float:
        """The largest sum of scores of tokens that make up a text; -inf if there are none."""
        if text not in self._best:
            self._best[text] = max(
                (
                    self.scores[text[:length]] + self.best(text[length:])
                    for length in range(1, len(text) + 1)
                    if text[:length] in self.scores
                ),
                default=-math.inf,
            )
        return self._best[text]

    def gain(self, node: int) -> float:
        """How much a token that has come to a node can gain at most on a new beginning there, whatever follows."""
        if node not in self._gains:
            text = self.nodes[node]
            self._gains[node] = max(self.scores[text + more] - self.best(more) for more in self.below[node])
        return self._gains[node]


class _Table:
    """The tokens that fit at a state of the texts, in the order of their texts, and what begins within them."""

    def __init__(self, fitting: FittingTokens, state: int, words: _Words) -> None:
        self._words = words
        found = fitting[state]
        self._texts, order = fitting.in_alphabetical_order(state)
        self.tokens, self.targets, self.inside = found.tokens[order], found.targets[order], found.inside[order]
        self.scores: Floats = np.array([words.scores[text] for text in self._texts], dtype=np.float64)
        self.ends: Floats = np.array([words.best(text) for text in self._texts], dtype=np.float64)
        starts = [
            (row, position, words.numbers[text[position:]])
            for row, text in enumerate(self._texts)
            for position in range(len(text))
            if text[position:] in words.numbers
        ]
        columns = np.array(starts, dtype=np.int64).reshape(-1, 3)
        self.start_rows, self._positions, self.start_nodes = columns.T
        self.starts = self._bests(0)
        self.start_gains: Floats = np.array([words.gain(node) for node in self.start_nodes.tolist()], np.float64)
        self._rivals: dict[int, tuple[Floats, Floats]] = {}
        self._carried: dict[int, list[tuple[int, int]]] = {}
        self._behind: dict[int, tuple[Floats, Floats]] = {}

    def rivals(self, node: int) -> tuple[Floats, Floats]:
        """The best scores to the ends and starts of this table, of ways that begin with a token that is at a node."""
        if node in self._rivals:
            return self._rivals[node]
        ends, starts = np.full(len(self.tokens), -math.inf), np.full(len(self.start_rows), -math.inf)
        text = self._words.nodes[node]
        for more in self._words.below[node]:
            first = bisect_left(self._texts, more)
            last = bisect_left(self._texts, more + b"\xff\xff")
            if first == last:
                continue
            score = self._words.scores[text + more]
            ends_behind, starts_behind = self._bests_behind(len(more))
            rows = slice(first, last)
            np.maximum(ends[rows], score + ends_behind[rows], out=ends[rows])
            rows = slice(*np.searchsorted(self.start_rows, [first, last]))
            np.maximum(starts[rows], score + starts_behind[rows], out=starts[rows])
        self._rivals[node] = ends, starts
        return ends, starts

    def carried(self, node: int) -> list[tuple[int, int]]:
        """The tokens over which a token that is at a node reaches as a whole, and the node that it then comes to."""
        if node not in self._carried:
            text = self._words.nodes[node]
            longer = ((row, self._words.numbers.get(text + more)) for row, more in enumerate(self._texts))
            self._carried[node] = [(row, number) for row, number in longer if number is not None]
        return self._carried[node]

    def _bests_behind(self, position: int) -> tuple[Floats, Floats]:
        """The best scores from a position within each token to its end, and to the starts within it."""
        if position not in self._behind:
            ends = [self._words.best(text[position:]) if len(text) >= position else -math.inf for text in self._texts]
            self._behind[position] = np.array(ends, dtype=np.float64), self._bests(position)
        return self._behind[position]

    def _bests(self, position: int) -> Floats:
        """The best scores from a position within each token to the starts within it."""
        return np.array(
            [
                self._words.best(self._texts[row][position:end]) if end >= position else -math.inf
                for row, end in zip(self.start_rows.tolist(), self._positions.tolist(), strict=True)
            ],
            dtype=np.float64,
        )
