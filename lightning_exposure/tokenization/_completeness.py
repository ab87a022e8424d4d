"""How it is known that a tree holds every secret once: by counting, by looking all of them up, or by trying some."""

from __future__ import annotations

from lightning_exposure.tokenization._text_samples import random_texts, texts_with
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.protocol import HasAddedTokens, Tokenizer, capability

LARGEST_LOOKED_UP = 100_000
"""Up to so many secrets are all looked up if counting does not show that the tree holds each of them once."""

LARGEST_LOOKED_UP_TWICE = 4_096
"""Up to so many secrets are all looked up even if counting shows it."""

_CHARACTERS = 4_000_000
"""What may be spelled to look secrets up: about a second or two for a fast tokenizer."""

_DRAWN = 512
"""How many secrets are drawn where not all are looked up; as many with added tokens, where those may occur."""


def all_can_be_looked_up(texts: Texts, size: int, *, counted: bool) -> bool:
    """Whether there are so few secrets that each can be spelled and looked up.

    Args:
        texts: The texts.
        size: How many there are.
        counted: Whether the number of paths shows already that each is in the tree once.
    """
    most, characters = (LARGEST_LOOKED_UP_TWICE, _CHARACTERS // 8) if counted else (LARGEST_LOOKED_UP, _CHARACTERS)
    return size <= most and size * _length(texts) <= characters


def drawn_texts(texts: Texts, tokenizer: Tokenizer, seed: int = 1) -> list[str]:
    """Secrets to try a tree on: some drawn at random, and some in which added tokens stand."""
    count = max(16, min(_DRAWN, _CHARACTERS // (4 * _length(texts))))
    drawn = random_texts(texts.plain, count, seed)
    has_added = capability(tokenizer, HasAddedTokens)
    if has_added is not None:
        drawn += texts_with(texts.plain, has_added.added_tokens_in(texts.plain), count, seed)
    return list(dict.fromkeys(drawn))


def in_words(paths: int | None, size: int, drawn: int) -> str:
    """What speaks for a tree that was not counted."""
    why = (
        "it is too large to find all its places"
        if paths is None
        else f"{paths:,} paths for {size:,} secrets: which are canonical is asked of the tokenizer at each leaf"
    )
    found = f"the tokens of {drawn:,} secrets that were drawn at random are all in it"
    return f"the tree could not be counted ({why}); {found}"


def _length(texts: Texts) -> int:
    """How many characters a text has, about: on the way that always takes the first edge."""
    state, length = texts.plain.start, 0
    while edges := texts.plain.edges(state):
        state = next(iter(edges.values()))
        length += 1
    return max(1, length)
