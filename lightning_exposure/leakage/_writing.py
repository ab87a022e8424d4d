"""What each token writes, and how a prompt is read when nothing stands behind it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.protocol import (
    HasBeginnings,
    HasPieces,
    HasSpellingRules,
    Pieces,
    Tokenizer,
    capability,
    surroundings_of,
)


@dataclass(frozen=True)
class GivenPrompt:
    """A prompt as an attacker gives it to a model.

    Attributes:
        tokens: What the model reads.
        covered: How many of its characters they hold: a tokenizer may drop a space at the end, and the model writes it.
        ahead: What stands before it in the tokens: a chat template.
    """

    tokens: list[int]
    covered: int
    ahead: str = ""


def read_prompt(tokenizer: Tokenizer, text: str) -> GivenPrompt:
    """Encode a prompt alone.

    Raises:
        TokenizerError: It cannot be spelled, or comes to no tokens at all.
    """
    has_beginnings = capability(tokenizer, HasBeginnings)
    if has_beginnings is not None:
        spans, ahead = has_beginnings.spans_of_beginning(text), surroundings_of(tokenizer).before
        tokens = [token for token, _, _ in spans]
        covered = max((end for _, _, end in spans), default=0) - len(ahead)
    else:
        tokens = list(tokenizer.encode(text))
        written = tokenizer.decode(tokens) if tokens else ""
        if not text.startswith(written):
            raise TokenizerError(
                f"the tokenizer spells the prompt {text!r} as {written!r}; expected the prompt or a beginning of it. "
                "Use a prompt that the tokenizer does not change."
            )
        covered, ahead = len(written), ""
    if not tokens:
        raise TokenizerError(
            f"the prompt {text!r} has no tokens; a model needs something to read before it writes. Begin the pattern "
            "with the text that comes before the secret."
        )
    return GivenPrompt(tokens, max(0, covered), ahead)


def as_bytes(tokenizer: Tokenizer, texts: Texts, fixed: int) -> ByteTexts:
    """Texts in the way the tokenizer's tokens write them.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        fixed: How many characters all of them begin with.
    """
    knows_rules = capability(tokenizer, HasSpellingRules)
    if knows_rules is not None:
        for rules in knows_rules.spelling_rules(texts, fixed):
            if rules.marked and capability(tokenizer, HasPieces) is not None:
                return ByteTexts(texts, rules.cuts, marked=True)
            if rules.marked:
                return rules.as_bytes(rules.texts)
            break
    return ByteTexts(texts, None)


def pieces_of(tokenizer: Tokenizer, vocab_size: int, anchor: int, texts: Texts) -> Pieces:
    """What each token adds to a text.

    Args:
        tokenizer: The tokenizer.
        vocab_size: How many tokens there are.
        anchor: A token that a text may begin with: many tokenizers write the first token of a text differently.
        texts: What is to be written: tokens may write texts of several lines in another way.
    """
    has_pieces = capability(tokenizer, HasPieces)
    if has_pieces is not None:
        known = enumerate(has_pieces.pieces())
        return [None if _writes_its_name(tokenizer, token, piece) else piece for token, piece in known]
    knows_rules = capability(tokenizer, HasSpellingRules)
    if knows_rules is not None:
        for rules in knows_rules.spelling_rules(texts, 0):
            if rules.marked:
                return rules.pieces
    before = tokenizer.decode([anchor])
    pieces: list[bytes | None] = []
    for token in range(vocab_size):
        both = tokenizer.decode([anchor, token])
        whole = both.startswith(before) and "\ufffd" not in both
        pieces.append(both[len(before) :].encode() if whole else None)
    return pieces


def _writes_its_name(tokenizer: Tokenizer, token: int, piece: bytes | None) -> bool:
    """Whether a token for a single byte is written as "<0x41>": its decoder does not make it a byte again."""
    return piece is not None and len(piece) == 1 and tokenizer.decode([token]) == f"<0x{piece[0]:02X}>"
