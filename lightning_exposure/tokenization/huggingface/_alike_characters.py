"""Which characters a tokenizer's cuts do not tell apart, read off its pre-tokenizer and normalizer."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Set

from lightning_exposure.tokenization.huggingface._tokenizer_json import Config, parts_of

# Components that ask only what kind of character one is (letter, digit, punctuation, space), or how many there are.
_BY_KIND = {
    "BertNormalizer",
    "BertPreTokenizer",
    "ByteLevel",
    "Digits",
    "FixedLength",
    "Lowercase",
    "Metaspace",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "Prepend",
    "Punctuation",
    "Strip",
    "StripAccents",
    "UnicodeScripts",
    "Whitespace",
    "WhitespaceSplit",
}
_KINDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def alike_characters(config: Config, characters: Set[str]) -> dict[str, str]:
    """Characters that the cuts do not tell apart, each with the one that stands for its kind.

    Args:
        config: A `tokenizer.json`.
        characters: Those of the texts. If there is an apostrophe, what follows it may be a contraction (`'s`), which is
            cut off as such.

    Example:
        >>> alike = alike_characters({"pre_tokenizer": {"type": "Digits", "individual_digits": True}}, {"7", "q"})
        >>> alike["7"], alike["q"]
        ('0', 'a')
        >>> alike_characters({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "12|q"}}}, set())["Q"]
        'A'
    """
    has_apostrophes = not characters.isdisjoint("'\u2019")
    told_apart: set[str] = set()
    for part in parts_of(config.get("normalizer")) + parts_of(config.get("pre_tokenizer")):
        if part["type"] in ("Split", "Replace"):
            told_apart |= _named(part.get("pattern", {}), has_apostrophes) | set(str(part.get("content", "")))
        elif part["type"] == "CharDelimiterSplit":
            told_apart |= set(str(part.get("delimiter", "")))
        elif part["type"] not in _BY_KIND:
            return {}
        if part["type"] == "ByteLevel" and part.get("use_regex", True) and has_apostrophes:
            told_apart |= set("strevmld")  # it cuts 's, 't, 're, 've, 'm, 'll, 'd off
    kinds = [kind for kind in _KINDS if not told_apart & set(kind)]
    return {character: kind[0] for kind in kinds for character in kind}


def _named(pattern: Mapping[str, str], has_apostrophes: bool) -> set[str]:
    """The characters that a pattern names one by one, and not by their kind."""
    if "String" in pattern:
        return set(pattern["String"])
    left = pattern.get("Regex", "")
    left = re.sub(r"\\[pP]\{\^?\w+\}|\\[sSdDwWrntfvhH]|\\[^\w]", " ", left)  # kinds, and escaped punctuation
    left = re.sub(r"\{\d*,?\d*\}", " ", left)  # how often
    left = re.sub(r"\(\?i?[:=!>]|\(\?<[=!]", "(", left)  # groups, and looks ahead and behind
    left = re.sub(r"0-9|a-z|A-Z", " ", left)
    if not has_apostrophes:  # then no contraction is ever found
        left = re.sub(r"'(\[[a-zA-Z]+\]|[a-zA-Z]+|\([\[\]a-zA-Z|]+\))", " ", left)
    named = set(left)
    # (?i: ...) means both cases.
    return named | {character.swapcase() for character in named} if "(?i" in pattern.get("Regex", "") else named
