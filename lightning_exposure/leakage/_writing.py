"""What each token writes, and how a prompt is read when nothing stands behind it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.graphs.characters import Texts
from lightning_exposure.tokenization.huggingface.pieces import fallback_of
from lightning_exposure.tokenization.huggingface.pretokens import find_joints
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer, TokenizerFile
from lightning_exposure.tokenization.huggingface.tokenizer_json import parts_of
from lightning_exposure.tokenization.lines import LineTexts, word_pieces
from lightning_exposure.tokenization.tokenizers import Tokenizer, WordTokenizer

Pieces = list[bytes | None]
"""What each token adds to a text, by token id; None for a token that is no part of a text."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as an attacker gives it to a model.

    Attributes:
        tokens: What the model reads.
        covered: How many of its characters they hold: a tokenizer may drop a space at the end, and the model writes it.
        ahead: What stands before it in the tokens: a chat template.
    """

    tokens: list[int]
    covered: int
    ahead: str = ""


def read_prompt(tokenizer: Tokenizer, text: str) -> Prompt:
    """Encode a prompt alone.

    Raises:
        TokenizerError: It cannot be spelt, or comes to no tokens at all.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.file is not None:
        encoding = tokenizer.file.backend.encode(tokenizer.before + text, add_special_tokens=False)
        tokens = [*tokenizer.lead, *encoding.ids]
        covered = max((end for _, end in encoding.offsets), default=0) - len(tokenizer.before)
        ahead = tokenizer.before
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
    return Prompt(tokens, max(0, covered), ahead)


def file_of(tokenizer: Tokenizer) -> TokenizerFile | None:
    """What the tokenizer's file says, if it is known how its vocabulary writes text."""
    file = tokenizer.file if isinstance(tokenizer, HuggingFaceTokenizer) else None
    return file if file is not None and file.writing is not None else None


def pieces_of(tokenizer: Tokenizer, vocab_size: int, anchor: int) -> Pieces:
    """What each token adds to a text.

    Args:
        tokenizer: The tokenizer.
        vocab_size: How many tokens there are.
        anchor: A token that a text may begin with: many tokenizers write the first token of a text differently.
    """
    if isinstance(tokenizer, WordTokenizer):
        return list(word_pieces(tokenizer))
    file = file_of(tokenizer)
    if file is not None:
        # A token for a single byte writes that byte only if the decoder makes it one; otherwise it writes its name.
        named = set() if _makes_bytes(file) else set(fallback_of(file.config))
        return [None if token in named else piece for token, piece in enumerate(file.all_pieces)]
    before = tokenizer.decode([anchor])
    pieces: Pieces = []
    for token in range(vocab_size):
        both = tokenizer.decode([anchor, token])
        whole = both.startswith(before) and "\ufffd" not in both
        pieces.append(both[len(before) :].encode() if whole else None)
    return pieces


def as_written(tokenizer: Tokenizer, texts: Texts, fixed: int) -> ByteTexts:
    """Texts byte by byte, as the tokens of a tokenizer write them.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        fixed: How many characters all of them begin with.
    """
    if isinstance(tokenizer, WordTokenizer):
        lines = LineTexts(texts)
        return ByteTexts(lines, lines.joints(), marked=True)
    file = file_of(tokenizer)
    if file is None or file.writing is None or not file.writing.marked:
        return ByteTexts(texts, None)  # a token may reach over any cut that the tokenizer itself would make
    return ByteTexts(texts, find_joints(texts, fixed, file), marked=True)


def _makes_bytes(file: TokenizerFile) -> bool:
    return any(part["type"] == "ByteFallback" for part in parts_of(file.config.get("decoder")))
