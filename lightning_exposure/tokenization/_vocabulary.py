"""Which tokens fit at each place of the texts: a vocabulary as a trie, so that equal beginnings are looked at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.graphs.pretoken_cuts import CUT, NO_CUT
from lightning_exposure.tokenization.protocol import Pieces


class Trie:
    """A node: what may follow, and the tokens that end here."""

    __slots__ = ("below", "tokens")

    def __init__(self) -> None:
        self.below: dict[int, Trie] = {}
        self.tokens: list[int] = []

    def add(self, text: bytes, token: int) -> None:
        """Put in a token."""
        node = self
        for byte in text:
            after = node.below.get(byte)
            if after is None:
                after = node.below[byte] = Trie()
            node = after
        node.tokens.append(token)

    def after(self, data: bytes) -> Trie | None:
        """The node behind some bytes."""
        node: Trie | None = self
        for byte in data:
            node = None if node is None else node.below.get(byte)
        return node


class Vocabulary:
    """Those tokens of a vocabulary that can occur in texts of certain bytes.

    Formats have few different bytes, so that nearly all of a large vocabulary is left out at once.

    Args:
        pieces: What each token adds to a text.
        alphabet: The bytes.

    Attributes:
        texts: The tokens, and the text of each.
        trie: The same as a trie.
    """

    def __init__(self, pieces: Pieces, alphabet: Iterable[int]) -> None:
        allowed = bytes(alphabet)
        self.texts = {token: piece for token, piece in enumerate(pieces) if piece and not piece.strip(allowed)}
        self.trie = Trie()
        for token, text in self.texts.items():
            self.trie.add(text, token)


@dataclass(frozen=True)
class Fitting:
    """The tokens that fit at a place of the texts, in increasing order.

    Attributes:
        tokens: The token ids.
        targets: The state behind each.
        inside: Whether each begins inside a pre-token, for sure.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    inside: NDArray[np.bool_]


class FittingTokens:
    """The tokens that fit at each state of the texts, whatever stands before: looked up once for all who ask.

    Args:
        texts: The texts.
        vocabulary: The tokens.

    Attributes:
        texts: The texts.
        vocabulary: The tokens.
        forgets: For each state, whether nothing that follows there is inside a pre-token that has begun: what stands
            before it may be forgotten.
    """

    def __init__(self, texts: ByteTexts, vocabulary: Vocabulary) -> None:
        self.texts = texts
        self.vocabulary = vocabulary
        self.forgets: NDArray[np.bool_] = np.array(
            [NO_CUT not in texts.cuts(state).values() for state in range(len(texts))], dtype=bool
        )
        self._known: dict[int, Fitting] = {}

    def __getitem__(self, state: int) -> Fitting:
        """The tokens that fit behind a state."""
        found = self._known.get(state)
        if found is None:
            found = self._known[state] = _find(self.texts, self.vocabulary.trie, state)
        return found

    def in_alphabetical_order(self, state: int) -> tuple[list[bytes], NDArray[np.int64]]:
        """The texts of the tokens that fit behind a state, in alphabetical order, and that order."""
        texts = [self.vocabulary.texts[token] for token in self[state].tokens.tolist()]
        order = sorted(range(len(texts)), key=texts.__getitem__)
        return [texts[i] for i in order], np.array(order, dtype=np.int64)


def _find(texts: ByteTexts, trie: Trie, start: int) -> Fitting:
    """The tokens that fit behind a state of the texts and reach over no cut."""
    found: list[tuple[int, int, bool]] = []
    first_edges = texts.edges(start)
    for byte, cut in texts.cuts(start).items():
        if byte not in trie.below:
            continue
        inside = cut == NO_CUT
        stack = [(first_edges[byte], trie.below[byte])]
        while stack:
            state, node = stack.pop()
            found.extend((token, state, inside) for token in node.tokens)
            edges, cuts = texts.edges(state), texts.cuts(state)
            # The smaller of the two decides which bytes are tried.
            for next_byte in node.below if len(node.below) < len(edges) else edges:
                if next_byte in edges and next_byte in node.below and cuts[next_byte] != CUT:
                    stack.append((edges[next_byte], node.below[next_byte]))
    found.sort()
    tokens, targets, inside_flags = zip(*found, strict=True) if found else ((), (), ())
    return Fitting(np.array(tokens, np.int64), np.array(targets, np.int64), np.array(inside_flags, bool))
