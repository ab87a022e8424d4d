"""Which tokens write a text of a graph, go on writing one, or write it and more, at each place of the graph.

All spellings count, not only the tokenizer's own, and the last token may go on behind the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization.graphs.bytes import ByteTexts

Pieces = Iterable[bytes | None]


@dataclass(frozen=True)
class Tokens:
    """Tokens that lead to the same place in the same way.

    Attributes:
        tokens: The token ids.
        target: The state behind them; -1 where nothing more can follow.
        piece: What they write as far as it matters: up to the end of the last text that they complete, if there is
            no target.
        completes: How many bytes of the piece end a text, for each text that ends in it.
    """

    tokens: NDArray[np.int64]
    target: int
    piece: bytes
    completes: tuple[int, ...]


class Vocabulary:
    """All tokens that write something, as a trie of bytes.

    Args:
        pieces: What each token writes.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._below: list[dict[int, int]] = [{}]
        self._ending: list[list[int]] = [[]]
        for token, piece in enumerate(pieces):
            if piece:
                self._add(piece, token)

    def following(self, texts: ByteTexts, state: int) -> list[Tokens]:
        """The tokens that write a part of a text from a state on, or the rest of it and more."""
        found = []
        stack: list[tuple[int, int, bytes, tuple[int, ...]]] = [(0, state, b"", ())]
        while stack:
            node, at, piece, completes = stack.pop()
            edges = texts.edges(at)
            if self._ending[node]:
                goes_on = at if edges else -1
                if goes_on >= 0 or completes:
                    found.append(_tokens(self._ending[node], goes_on, piece, completes))
            for byte, below in self._below[node].items():
                after = edges.get(byte)
                if after is not None:
                    longer = piece + bytes([byte])
                    ends = (*completes, len(longer)) if texts.accepting(after) else completes
                    stack.append((below, after, longer, ends))
                elif completes:
                    found.append(_tokens(self._all_below(below), -1, piece[: completes[-1]], completes))
        return found

    def _add(self, piece: bytes, token: int) -> None:
        node = 0
        for byte in piece:
            after = self._below[node].get(byte)
            if after is None:
                after = self._below[node][byte] = len(self._below)
                self._below.append({})
                self._ending.append([])
            node = after
        self._ending[node].append(token)

    def _all_below(self, node: int) -> Iterator[int]:
        stack = [node]
        while stack:
            node = stack.pop()
            yield from self._ending[node]
            stack.extend(self._below[node].values())


class Target:
    """The texts that count, and the tokens that write them.

    Args:
        texts: The texts as bytes.
        start: The state that the prompt leads to.
        vocabulary: What the tokens write.
    """

    def __init__(self, texts: ByteTexts, start: int, vocabulary: Vocabulary) -> None:
        self.start = start
        self._texts = texts
        self._vocabulary = vocabulary
        self._following: dict[int, list[Tokens]] = {}

    @property
    def plain(self) -> bool:
        """Whether a text is written in one string of bytes only."""
        return self._texts.plain

    def following(self, state: int) -> list[Tokens]:
        """The tokens that may follow at a state; looked for once."""
        if state not in self._following:
            self._following[state] = _grouped(self._vocabulary.following(self._texts, state))
        return self._following[state]

    def text(self, written: bytes) -> str:
        """The characters of what was written behind the prompt."""
        return self._texts.text(written, self.start)


def _tokens(tokens: Iterable[int], target: int, piece: bytes, completes: tuple[int, ...]) -> Tokens:
    return Tokens(np.fromiter(tokens, dtype=np.int64), target, piece, completes)


def _grouped(found: list[Tokens]) -> list[Tokens]:
    """What only ends the same texts is one group: it does not matter how it goes on behind them."""
    ended: dict[tuple[bytes, tuple[int, ...]], list[NDArray[np.int64]]] = {}
    groups = []
    for tokens in found:
        if tokens.target >= 0:
            groups.append(tokens)
        elif len(tokens.tokens):
            ended.setdefault((tokens.piece[: tokens.completes[-1]], tokens.completes), []).append(tokens.tokens)
    for (piece, completes), parts in ended.items():
        groups.append(Tokens(np.concatenate(parts), -1, piece, completes))
    return groups
