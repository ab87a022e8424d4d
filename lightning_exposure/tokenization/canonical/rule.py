"""Which paths of tokens can still become the canonical one: how the tokenizer itself spells their text.

A text has many spellings, and training saw one, `encode(text)`. Walks over all of them would drown: with 2,000 tokens a
number of nine digits has 89 spellings on average. So a path is given up at the first token that proves it is not the
canonical one.

What is proven, for each kind of model, is about one *pre-token* (see `pretoken_cuts`), which the model spells without
regard to its neighbours: **a contiguous part of a canonical path is canonical for its own text.** Let a canonical path
have a token boundary at position p of a pre-token.

- *BPE* (`bpe`) merges, again and again, the pair with the lowest rank, the leftmost of equals. A merge over p would
  remove the boundary for good, so there was none: every merge was left or right of p, and on each side it was the best
  pair of that side. Hence each side, alone, is merged in the same way.
- *Unigram* (`unigram`) takes the segmentation with the largest sum of scores. Were a part not the best for
  its own text, the better one in its place would improve the whole. Only sums that differ by more than rounding count;
  of equals both are kept.
- *WordPiece* (`wordpiece`) takes the longest token that fits, from left to right. A token that is the longest in a
  text is the longest in a part of it that begins and ends at token boundaries.

So a path whose last tokens, within one pre-token, are not canonical for their own text is no beginning of a canonical
path, and it is left out with all that follows. Where a cut between two tokens is not certain, nothing is concluded
from what stands before it.

When this is used: the model is one of these three, without dropout, without marks for the ends of words, and with a
token for every character (BPE may turn to single bytes instead); no text may contain an added token; and the cuts are
known (see `pretoken_cuts`). For any other tokenizer, and any other format, all spellings are walked, and a leaf is
compared with `encode` of its text.

None of this has to be trusted for counting: every secret has one canonical path, and none of them is left out. So if
the number of paths that are left is the number of secrets, every path that is left is canonical; that is checked, and
where it is not so each leaf is compared with `encode` as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.tokenization._vocabulary import FittingTokens

Integers = NDArray[np.int64]

FRESH = -1
"""The past at the beginning of a pre-token, or where nothing is concluded from what stands before."""


class CanonicalRule(Protocol):
    """Which tokens may follow so that a path may be canonical.

    What must be remembered of a path is a number, its past; `FRESH` at first.
    """

    def children(self, state: int, past: int, /) -> tuple[Integers, Integers, Integers]:
        """The tokens that may follow at a state of the texts, in increasing order, their targets and pasts."""
        ...


MakeRule = Callable[[FittingTokens], CanonicalRule]
"""Makes the rule for the tokens that fit in the texts of a format."""


class AnySpelling:
    """Every way to spell the texts, canonical or not.

    Args:
        fitting: The tokens that fit in the texts.
    """

    def __init__(self, fitting: FittingTokens) -> None:
        self._fitting = fitting

    def children(self, state: int, past: int, /) -> tuple[Integers, Integers, Integers]:
        """All tokens that fit."""
        found = self._fitting[state]
        return found.tokens, found.targets, np.full(len(found.tokens), FRESH, dtype=np.int64)
