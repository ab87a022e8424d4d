"""The canonical paths of a WordPiece model: each token is the longest one that fits.

What must be remembered of a path is which of its tokens might have been longer: for each, the node of the text from
its beginning to the end of the path, as long as some token begins with that text. If one of them comes to the end of a
token, the tokenizer would have taken that one instead.
"""

from __future__ import annotations

import numpy as np

from lightning_exposure.tokenization._vocabulary import FittingTokens, Trie
from lightning_exposure.tokenization.canonical.rule import FRESH, Integers
from lightning_exposure.tokenization.graphs.pretoken_cuts import CUT


class LongestMatchRule:
    """The paths of longest matches.

    Args:
        fitting: The tokens that fit in the texts, which have marks at the beginnings of words.
    """

    def __init__(self, fitting: FittingTokens) -> None:
        self._texts = fitting.texts
        self._trie = fitting.vocabulary.trie
        self._longer: list[list[Trie]] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def children(self, state: int, past: int, /) -> tuple[Integers, Integers, Integers]:
        """The tokens that may follow, given the longer tokens that were possible (the past)."""
        texts = self._texts
        found: list[tuple[int, int, int]] = []
        before = self._longer[past] if past != FRESH else []  # no longer token has the mark of a new word in it
        stack = [(state, byte, self._trie, before) for byte in texts.edges(state) if byte in self._trie.below]
        while stack:
            at, byte, own, longer = stack.pop()
            at, own = texts.edges(at)[byte], own.below[byte]
            longer = [node.below[byte] for node in longer if byte in node.below]
            if any(node.tokens for node in longer):
                continue  # an earlier token would have been longer
            if own.tokens:
                past_after = self._remember([*longer, own])
                found.extend((token, at, past_after) for token in own.tokens)
            for following, cut in texts.cuts(at).items():
                if cut != CUT and following in own.below:
                    stack.append((at, following, own, longer))
        columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
        return columns[:, 0], columns[:, 1], columns[:, 2]

    def _remember(self, longer: list[Trie]) -> int:
        """A number for the longer tokens that are possible."""
        longer = [node for node in longer if node.below]
        key = tuple(sorted(map(id, longer)))
        if not key:
            return FRESH
        if key not in self._numbers:
            self._numbers[key] = len(self._longer)
            self._longer.append(longer)
        return self._numbers[key]
