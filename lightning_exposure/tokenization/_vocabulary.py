"""The texts of a vocabulary as a trie, so that tokens with one beginning are looked at together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.huggingface.pretokens import APART, INSIDE

Pieces = Sequence[bytes | None]
"""What each token adds to a text, by token id; None or nothing for a token that is no part of a text."""


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
class Following:
    """The tokens that fit at a place of the texts, in increasing order.

    Attributes:
        tokens: The token ids.
        targets: The state behind each.
        inside: Whether each begins inside a pre-token, for sure.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    inside: NDArray[np.bool_]


def alphabet_of(texts: ByteTexts, start: int) -> set[int]:
    """The bytes that occur behind a state."""
    return {byte for state in texts.reachable(start) for byte in texts.edges[state]}


def following(texts: ByteTexts, trie: Trie, start: int) -> Following:
    """The tokens that fit behind a state of the texts and reach over no cut."""
    found: list[tuple[int, int, bool]] = []
    for byte, joint in texts.joints[start].items():
        if byte not in trie.below:
            continue
        inside = joint == INSIDE
        stack = [(texts.edges[start][byte], trie.below[byte])]
        while stack:
            state, node = stack.pop()
            found.extend((token, state, inside) for token in node.tokens)
            edges, joints = texts.edges[state], texts.joints[state]
            # The smaller of the two decides which bytes are tried.
            for next_byte in node.below if len(node.below) < len(edges) else edges:
                if next_byte in edges and next_byte in node.below and joints[next_byte] != APART:
                    stack.append((edges[next_byte], node.below[next_byte]))
    found.sort()
    tokens, targets, inside_flags = zip(*found, strict=True) if found else ((), (), ())
    return Following(np.array(tokens, np.int64), np.array(targets, np.int64), np.array(inside_flags, bool))
