"""Where the tree begins: the last place in the prompt at which every secret has a token boundary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lightning_exposure.errors import TokenizerError
from lightning_exposure.secrets.formats.graph import steps_behind
from lightning_exposure.tokenization._spelling_rules import SpellingRules
from lightning_exposure.tokenization._vocabulary import Trie, Vocabulary
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.graphs.pretoken_cuts import CUT
from lightning_exposure.tokenization.graphs.texts import fixed_part
from lightning_exposure.tokenization.protocol import HasSpans, Tokenizer, capability, surroundings_of

_NEAR = 64
"""The tree hardly ever begins more than so many tokens before the end of the prompt."""


class Boundary(NamedTuple):
    """A token boundary within the fixed part of all texts."""

    tokens: int
    """How many tokens stand before it."""
    position: int
    """How many characters stand before it."""
    state: int
    """The state of the texts there."""


def shared_tokens(spelled: Sequence[list[int]]) -> list[int]:
    """The longest run of tokens that some spellings begin with, and that is none of them as a whole."""
    # All begin with what the first and the last of them, in alphabetical order, have in common.
    first, last = min(spelled), max(spelled)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: min(same, min(map(len, spelled)) - 1)]


def positions_of(tokenizer: Tokenizer, text: str, tokens: Sequence[int], last: int | None = None) -> list[int | None]:
    """How many characters of a text (with the template before it) the first 0, 1, 2 ... of its tokens cover.

    None where that is not a whole number of characters, or where the tokens alone do not give the text's beginning.

    Args:
        tokenizer: What spelled the text.
        text: The text.
        tokens: Its first tokens.
        last: Look at the last so many only, where each look takes as long as the text is; None: at all.
    """
    has_spans = capability(tokenizer, HasSpans)
    if has_spans is not None:
        return _positions_of_spans(tokenizer, has_spans, text, tokens)
    first = 1 if last is None else max(1, len(tokens) + 1 - last)
    decoded = [tokenizer.decode(tokens[:count]) for count in range(first, len(tokens) + 1)]
    return [None] * first + [len(beginning) if text.startswith(beginning) else None for beginning in decoded]


def _positions_of_spans(
    tokenizer: Tokenizer, has_spans: HasSpans, text: str, tokens: Sequence[int]
) -> list[int | None]:
    """The same, of a tokenizer that tells which characters its tokens cover."""
    spans = has_spans.spans(text)
    if [token for token, _, _ in spans][: len(tokens)] != list(tokens):
        raise TokenizerError(
            f"spans of {type(tokenizer).__name__} has other tokens for {text!r} than encode, which begins with "
            f"{list(tokens)}; expected the same. Make the two agree, or leave spans out: encode and decode are enough."
        )
    lead = surroundings_of(tokenizer).lead
    found: list[int | None] = [None] * len(lead)
    if lead:
        found.append(0)
    for count in range(len(found) or 1, len(tokens) + 1):
        _, _, end = spans[count - 1]
        found += [None] * (count - len(found))
        found.append(end if count == len(spans) or spans[count][1] >= end else None)
    return found


class TreeStart:
    """Where the secrets of a format part: looks for the last token boundary that all of them have.

    Nothing is ever merged over it, so that what follows does not depend on what stands before.

    Args:
        tokenizer: What spells the secrets.
        rules: The way in which it does.
        texts: The texts as the tokens spell them.
        fixed: How many characters all texts begin with, with what stands before the secrets.
    """

    def __init__(self, tokenizer: Tokenizer, rules: SpellingRules, texts: ByteTexts, fixed: int) -> None:
        self._tokenizer, self._rules, self._texts = tokenizer, rules, texts
        self._states = fixed_part(rules.texts.plain, fixed)[1]
        # A space that the tokenizer itself puts before a text is not counted in positions, but for the root alone.
        self._extra = len(rules.texts.before) - len(surroundings_of(tokenizer).before)

    def find(self, text: str, spelled: Sequence[list[int]]) -> Boundary | None:
        """The last boundary within the fixed part that all secrets have, not only those that were tried.

        Args:
            text: One of the secrets.
            spelled: How some are spelled, this one first.
        """
        shared = shared_tokens(spelled)
        for last in (_NEAR, None):
            found = self._last_uncrossed(self._boundaries(text, shared, last), spelled[0])
            if found is not None:
                return found
        return None

    def _boundaries(self, text: str, shared: Sequence[int], last: int | None) -> list[Boundary]:
        """The token boundaries within the fixed part that the tried secrets share.

        Args:
            text: One of the secrets.
            shared: The tokens that all begin with.
            last: Look at the last so many tokens only, where each look takes as long as the text is; None: at all.
        """
        found = []
        for count, position in enumerate(positions_of(self._tokenizer, text, shared, last)):
            if position is None or count == 0:
                continue
            position += self._extra if position else 0
            if position < len(self._states):
                found.append(Boundary(count, position, self._states[position]))
        return found

    def _last_uncrossed(self, boundaries: list[Boundary], spelled: Sequence[int]) -> Boundary | None:
        """The last of some boundaries over which nothing is merged."""
        boundaries = [b for b in boundaries if not self._rules.texts.cut_out_over(b.position, self._states)]
        # No token reaches over a cut, so that what stands before the last one does not matter.
        cuts = [boundary for boundary in boundaries if _is_cut(self._texts, boundary.state)]
        if not boundaries or (cuts and cuts[-1] == boundaries[-1]):
            return cuts[-1] if cuts else None
        start = cuts[-1].state if cuts else self._rules.texts.start
        near = Vocabulary(self._rules.pieces, steps_behind(self._texts, start))
        longest = max(map(len, near.texts.values()), default=1)
        for boundary in reversed(boundaries):
            nearby = spelled[max(0, boundary.tokens - longest) : boundary.tokens]
            before = b"".join([self._rules.pieces[token] or b"" for token in nearby])[-longest:]
            if (
                boundary.position == 0
                or boundary in cuts
                or not _reaches_over(self._texts, near.trie, before, boundary.state)
            ):
                return boundary
        return None


def _is_cut(texts: ByteTexts, state: int) -> bool:
    """Whether the texts are always cut at a state."""
    return all(cut == CUT for cut in texts.cuts(state).values())


def _reaches_over(texts: ByteTexts, trie: Trie, before: bytes, state: int) -> bool:
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
        for byte, target in texts.edges(at).items():
            after = node.below.get(byte)
            if after is None or texts.cuts(at)[byte] == CUT:
                continue
            if after.tokens:
                return True
            stack.append((after, target))
    return False
