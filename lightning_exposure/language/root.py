"""Where the tree begins: the last place in the prompt at which every secret has a token boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lightning_exposure.language.byte_texts import ByteTexts
from lightning_exposure.language.joints import APART
from lightning_exposure.language.subwords import HuggingFaceTokenizer
from lightning_exposure.language.tokenizers import Tokenizer
from lightning_exposure.language.trie import Trie


class Boundary(NamedTuple):
    """A token boundary within the fixed part of all texts."""

    tokens: int
    """How many tokens stand before it."""
    position: int
    """How many characters stand before it."""
    state: int
    """The state of the texts there."""


def shared_tokens(spelt: Sequence[list[int]]) -> list[int]:
    """The longest run of tokens that some spellings begin with, and that is none of them as a whole."""
    shared = min(spelt, key=len)[:-1]
    for tokens in spelt:
        if tokens[: len(shared)] == shared:
            continue
        same = 0
        while same < len(shared) and tokens[same] == shared[same]:
            same += 1
        shared = shared[:same]
    return shared


def positions_of(tokenizer: Tokenizer, text: str, tokens: Sequence[int], first: int = 0) -> list[int | None]:
    """How many characters of a text (with the template before it) the first 0, 1, 2 ... of its tokens cover.

    None where that is not a whole number of characters, where the tokens alone do not give the text's beginning, and
    for numbers of tokens below `first`: a tokenizer that only decodes must decode the beginning anew for each.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.file is not None:
        spans = tokenizer.spans(text)
        found: list[int | None] = [None] * len(tokenizer.lead)
        if tokenizer.lead:
            found.append(0)
        for count in range(len(found) or 1, len(tokens) + 1):
            end = spans[count - 1].end
            found += [None] * (count - len(found))
            found.append(end if count == len(spans) or spans[count].start >= end else None)
        return found
    first = min(max(1, first), len(tokens) + 1)
    decoded = [tokenizer.decode(tokens[:count]) for count in range(first, len(tokens) + 1)]
    return [None] * first + [len(beginning) if text.startswith(beginning) else None for beginning in decoded]


def is_cut(texts: ByteTexts, state: int) -> bool:
    """Whether the texts are always cut at a state."""
    return all(joint == APART for joint in texts.joints[state].values())


def reaches_over(texts: ByteTexts, trie: Trie, before: bytes, state: int) -> bool:
    """Whether some token that begins in what stands before a state could reach over it, in any text.

    The secrets that were tried may not show such a token: it may occur in a few of the many others only.
    """
    for length in range(1, len(before) + 1):
        node = trie.after(before[-length:])
        if node is not None and _goes_on(texts, node, state):
            return True
    return False


def _goes_on(texts: ByteTexts, node: Trie, state: int) -> bool:
    """Whether a token that has begun can end behind a state."""
    stack = [(node, state)]
    while stack:
        node, at = stack.pop()
        for byte, target in texts.edges[at].items():
            after = node.below.get(byte)
            if after is None or texts.joints[at][byte] == APART:
                continue
            if after.tokens:
                return True
            stack.append((after, target))
    return False
