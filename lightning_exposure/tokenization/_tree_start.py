"""Where the tree begins: the last place in the prompt at which every secret has a token boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lightning_exposure.tokenization._vocabulary import Trie
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.huggingface.pretokens import APART
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.tokenization.tokenizers import Tokenizer


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
    # All begin with what the first and the last of them, in alphabetical order, have in common.
    first, last = min(spelt), max(spelt)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: min(same, min(map(len, spelt)) - 1)]


def positions_of(tokenizer: Tokenizer, text: str, tokens: Sequence[int], last: int | None = None) -> list[int | None]:
    """How many characters of a text (with the template before it) the first 0, 1, 2 ... of its tokens cover.

    None where that is not a whole number of characters, or where the tokens alone do not give the text's beginning.

    Args:
        tokenizer: What spelt the text.
        text: The text.
        tokens: Its first tokens.
        last: Look at the last so many only, where each look takes as long as the text is; None: at all.
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
    first = 1 if last is None else max(1, len(tokens) + 1 - last)
    decoded = [tokenizer.decode(tokens[:count]) for count in range(first, len(tokens) + 1)]
    return [None] * first + [len(beginning) if text.startswith(beginning) else None for beginning in decoded]


def find_boundaries(
    tokenizer: Tokenizer, text: str, shared: Sequence[int], states: Sequence[int], extra: int, last: int | None
) -> list[Boundary]:
    """The token boundaries within the fixed part of all texts that the tried ones share.

    Args:
        tokenizer: What spelt the text.
        text: One of the texts.
        shared: The tokens that all begin with.
        states: The states of the fixed part, the last one included.
        extra: How many characters stand before the text that are not counted in positions.
        last: Look at the last so many tokens only, where each look takes as long as the text is; None: at all.
    """
    found = []
    for count, position in enumerate(positions_of(tokenizer, text, shared, last)):
        if position is None or count == 0:
            continue
        position += extra if position else 0
        if position < len(states):
            found.append(Boundary(count, position, states[position]))
    return found


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
