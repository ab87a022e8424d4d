"""Which tokens write a text of a graph, go on writing one, or write it and more, at each place of the graph.

All spellings count, not only the tokenizer's own, and the last token may go on behind the text.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization.graphs.bytes import ByteTexts

Pieces = Iterable[bytes | None]


@dataclass(frozen=True)
class TokenGroup:
    """TokenGroup that lead to the same place in the same way.

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


class WrittenTokens:
    """All tokens that write something, in the order of what they write: those with one beginning stand together.

    Args:
        pieces: What each token writes.
    """

    def __init__(self, pieces: Pieces) -> None:
        entries = sorted((piece, token) for token, piece in enumerate(pieces) if piece)
        self._pieces = [piece for piece, _ in entries]
        self._tokens = np.array([token for _, token in entries], dtype=np.int64)

    def following(self, texts: ByteTexts, state: int) -> list[TokenGroup]:
        """The tokens that write a part of a text from a state on, or the rest of it and more."""
        found: list[TokenGroup] = []
        stack: list[tuple[int, int, int, bytes, tuple[int, ...]]] = [(0, len(self._pieces), state, b"", ())]
        while stack:
            first, last, at, piece, completes = stack.pop()
            edges = texts.edges(at)
            same = bisect_right(self._pieces, piece, first, last)
            if same > first and (edges or completes):
                found.append(TokenGroup(self._tokens[first:same], at if edges else -1, piece, completes))
            leaving: list[NDArray[np.int64]] = []  # they write something else from here on
            behind = same
            for byte in sorted(edges):
                longer = piece + bytes([byte])
                begin = bisect_left(self._pieces, longer, behind, last)
                end = last if byte == 0xFF else bisect_left(self._pieces, piece + bytes([byte + 1]), begin, last)
                leaving.append(self._tokens[behind:begin])
                behind = end
                if end > begin:
                    ends = (*completes, len(longer)) if texts.accepting(edges[byte]) else completes
                    stack.append((begin, end, edges[byte], longer, ends))
            leaving.append(self._tokens[behind:last])
            if completes:
                found.append(TokenGroup(np.concatenate(leaving), -1, piece[: completes[-1]], completes))
        return found


class LeakTarget:
    """The texts that count, and the tokens that write them.

    Args:
        texts: The texts as bytes.
        start: The state that the prompt leads to.
        vocabulary: What the tokens write.
    """

    def __init__(self, texts: ByteTexts, start: int, vocabulary: WrittenTokens) -> None:
        self.start = start
        self._texts = texts
        self._vocabulary = vocabulary
        self._following: dict[int, list[TokenGroup]] = {}

    @property
    def plain(self) -> bool:
        """Whether a text is written in one string of bytes only."""
        return self._texts.plain

    def following(self, state: int) -> list[TokenGroup]:
        """The tokens that may follow at a state; looked for once."""
        if state not in self._following:
            self._following[state] = _grouped(self._vocabulary.following(self._texts, state))
        return self._following[state]

    def text(self, written: bytes) -> str:
        """The characters of what was written behind the prompt."""
        return self._texts.text(written, self.start)


def _grouped(found: list[TokenGroup]) -> list[TokenGroup]:
    """What only ends the same texts is one group: it does not matter how it goes on behind them."""
    ended: dict[tuple[bytes, tuple[int, ...]], list[NDArray[np.int64]]] = {}
    groups = []
    for tokens in found:
        if tokens.target >= 0:
            groups.append(tokens)
        elif len(tokens.tokens):
            ended.setdefault((tokens.piece[: tokens.completes[-1]], tokens.completes), []).append(tokens.tokens)
    for (piece, completes), parts in ended.items():
        groups.append(TokenGroup(np.concatenate(parts), -1, piece, completes))
    return groups
