"""What each token adds to a text, read off a `tokenizer.json`.

Not by decoding tokens one by one: that is slow for 50,000 of them, and a token that holds half of an "é" decodes to
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from lightning_exposure.tokenization.graphs.bytes import WORD_MARK
from lightning_exposure.tokenization.huggingface._tokenizer_json import (
    Config,
    added_tokens,
    parts_of,
    unknown_of,
    vocabulary_of,
)
from lightning_exposure.tokenization.protocol import Pieces

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    r"""The characters that stand for bytes in a byte-level vocabulary.

    Bytes that are visible characters of Latin-1 stand for themselves, the others, in order, for what follows U+0100.

    Example:
        >>> byte_alphabet()["A"], byte_alphabet()["\u0120"]
        (65, 32)
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


@dataclass(frozen=True)
class Writing:
    """How a vocabulary writes text.

    Attributes:
        read: What a token's string adds to a text.
        symbols: The strings of the smallest tokens for a character, of which longer ones are made.
        marked: Whether the tokens drop spaces, and those that begin a word have a mark.
    """

    read: Callable[[str], bytes | None]
    symbols: Callable[[str], list[str]]
    marked: bool = False


def writing_of(config: Config) -> Writing | None:
    """How the vocabulary of a `tokenizer.json` writes text; None if that is none of the known ways."""
    model = config["model"]
    kinds = {part["type"] for key in ("normalizer", "pre_tokenizer", "decoder") for part in parts_of(config.get(key))}
    prefix = model.get("continuing_subword_prefix") or ""
    if model["type"] in ("WordPiece", "WordLevel"):
        if kinds & {"ByteLevel", "Metaspace"}:
            return None
        return Writing(partial(_word, prefix=prefix), partial(_character, space=" "), marked=True)
    if prefix or model.get("end_of_word_suffix"):
        return None
    if "ByteLevel" in kinds:
        letters = byte_alphabet()
        signs = {byte: letter for letter, byte in letters.items()}
        return Writing(partial(_bytes, letters=letters), partial(_signs, signs=signs))
    space = _sign_for_space(config)
    return None if space is None else Writing(partial(_text, space=space), partial(_character, space=space))


def pieces_of(config: Config, writing: Writing) -> Pieces:
    """What each token adds to a text; None for special tokens and for the one that stands for all that is unknown."""
    vocabulary, added = vocabulary_of(config), added_tokens(config)
    pieces: list[bytes | None] = [None] * (1 + max([*vocabulary.values(), *added], default=0))
    for token, number in vocabulary.items():
        pieces[number] = writing.read(token)
    for number, byte in fallback_of(config).items():
        pieces[number] = bytes([byte])
    for number, entry in added.items():
        content = entry["content"].encode()
        pieces[number] = None if entry.get("special") else bytes([WORD_MARK]) + content if writing.marked else content
    unknown = unknown_of(config)
    if unknown is not None:
        pieces[unknown] = None
    return pieces


def fallback_of(config: Config) -> dict[int, int]:
    """The tokens that stand for single bytes of characters that the vocabulary lacks, and those bytes."""
    if not config["model"].get("byte_fallback"):
        return {}
    found = ((number, _BYTE.fullmatch(token)) for token, number in vocabulary_of(config).items())
    return {number: int(match[1], 16) for number, match in found if match}


def _bytes(token: str, letters: Mapping[str, int]) -> bytes | None:
    if not all(letter in letters for letter in token):
        return None
    return bytes(letters[letter] for letter in token)


def _signs(character: str, signs: Mapping[int, str]) -> list[str]:
    return [signs[byte] for byte in character.encode()]


def _word(token: str, prefix: str) -> bytes:
    """A token of a vocabulary that drops spaces."""
    if prefix and token.startswith(prefix) and token != prefix:
        return token[len(prefix) :].encode()
    return bytes([WORD_MARK]) + token.encode()


def _text(token: str, space: str) -> bytes:
    return token.replace(space, " ").encode()


def _character(character: str, space: str) -> list[str]:
    return [space if character == " " else character]


def _sign_for_space(config: Config) -> str | None:
    """The character that stands for a space in the vocabulary; None if spaces are lost."""
    parts = parts_of(config.get("normalizer")) + parts_of(config.get("pre_tokenizer"))
    for part in parts:
        if part["type"] == "Metaspace":
            return str(part.get("replacement", "\u2581"))
        if part["type"] == "Replace" and part.get("pattern") in ({"String": " "}, {"Regex": " "}):
            return str(part["content"])
    drops = {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
    return None if any(part["type"] in drops for part in parts) else " "
