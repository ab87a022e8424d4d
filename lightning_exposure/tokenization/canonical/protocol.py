"""Which paths of tokens can still become the canonical one: how the tokenizer itself spells their text.

A text has many spellings, and training saw one, `encode(text)`. Walks over all of them would drown: with 2,000 tokens a
number of nine digits has 89 spellings on average. So a path is given up at the first token that proves it is not the
canonical one.

What is proven, for each kind of model, is about one *pre-token* (see `joints`), which the model spells without regard
to its neighbours: **a contiguous part of a canonical path is canonical for its own text.** Let a canonical path have a
token boundary at position p of a pre-token.

- *BPE* (`merges`) merges, again and again, the pair with the lowest rank, the leftmost of equals. A merge over p would
  remove the boundary for good, so there was none: every merge was left or right of p, and on each side it was the best
  pair of that side. Hence each side, alone, is merged in the same way.
- *Unigram* (`best_segmentation`) takes the segmentation with the largest sum of scores. Were a part not the best for
  its own text, the better one in its place would improve the whole. Only sums that differ by more than rounding count;
  of equals both are kept.
- *WordPiece* (`longest_match`) takes the longest token that fits, from left to right. A token that is the longest in a
  text is the longest in a part of it that begins and ends at token boundaries.

So a path whose last tokens, within one pre-token, are not canonical for their own text is no beginning of a canonical
path, and it is left out with all that follows. Where a cut between two tokens is not certain, nothing is concluded
from what stands before it.

When this is used: the model is one of these three, without dropout, without marks for the ends of words, and with a
token for every character (BPE may turn to single bytes instead); no text may contain an added token; and the cuts are
known (see `joints`). For any other tokenizer, and any other format, all spellings are walked, and a leaf is compared
with `encode` of its text.

None of this has to be trusted for counting: every secret has one canonical path, and none of them is left out. So if
the number of paths that are left is the number of secrets, every path that is left is canonical; that is checked, and
where it is not so each leaf is compared with `encode` as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization._vocabulary import Following, Vocabulary, following
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.huggingface.pretokens import INSIDE

Integers = NDArray[np.int64]

FRESH = -1
"""The memory at the beginning of a pre-token, or where nothing is concluded from what stands before."""


class Canon(Protocol):
    """Which tokens may follow so that a path may be canonical.

    What must be remembered of a path is a number, its memory; `FRESH` at first.
    """

    def children(self, state: int, memory: int, /) -> tuple[Integers, Integers, Integers]:
        """The tokens that may follow at a state of the texts, in increasing order, their targets and memories."""
        ...


def forgetting(texts: ByteTexts) -> NDArray[np.bool_]:
    """For each state, whether nothing that follows there is inside a pre-token that has begun: it may be forgotten."""
    return np.array([INSIDE not in joints.values() for joints in texts.joints], dtype=bool)


MakeCanon = Callable[[ByteTexts, Vocabulary], Canon]
"""Makes the canon for the texts of a format and the tokens that fit in them."""


class Edges:
    """The tokens that fit at each state of the texts, whatever stands before: looked up once.

    Args:
        texts: The texts.
        vocabulary: The tokens.

    Attributes:
        forgets: For each state, whether nothing that follows there is inside a pre-token that has begun.
    """

    def __init__(self, texts: ByteTexts, vocabulary: Vocabulary) -> None:
        self.forgets = forgetting(texts)
        self._texts = texts
        self._vocabulary = vocabulary
        self._known: dict[int, Following] = {}

    def texts_of(self, found: Following) -> tuple[list[bytes], Integers]:
        """The texts of some tokens in alphabetical order, and that order."""
        texts = [self._vocabulary.texts[token] for token in found.tokens.tolist()]
        order = sorted(range(len(texts)), key=texts.__getitem__)
        return [texts[i] for i in order], np.array(order, dtype=np.int64)

    def __getitem__(self, state: int) -> Following:
        """The tokens that fit behind a state."""
        found = self._known.get(state)
        if found is None:
            found = self._known[state] = following(self._texts, self._vocabulary.trie, state)
        return found


class AnySpelling:
    """Every way to spell the texts, canonical or not.

    Args:
        texts: The texts.
        vocabulary: The tokens.
    """

    def __init__(self, texts: ByteTexts, vocabulary: Vocabulary) -> None:
        self._edges = Edges(texts, vocabulary)

    def children(self, state: int, memory: int, /) -> tuple[Integers, Integers, Integers]:
        """All tokens that fit."""
        edges = self._edges[state]
        return edges.tokens, edges.targets, np.full(len(edges.tokens), FRESH, dtype=np.int64)
