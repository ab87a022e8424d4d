r"""Where a tokenizer cuts texts before it looks for tokens: the joints between its pre-tokens.

A tokenizer first cuts a text into pre-tokens (at spaces, between digits and punctuation, in groups of three digits),
often with a regular expression that looks ahead (`\s+(?!\S)`). No token reaches over such a cut, and how one pre-token
is spelt does not depend on its neighbours. What holds for a tokenizer's model (see `canonical`) holds within one
pre-token only, so it must be known which two neighbouring characters are in one.

The regular expression is not taken apart. What is used instead: nearly all of them treat digits alike, and letters of
one case alike. Then the cuts of a text are those of its *shape*, the text with one and the same digit for every digit,
one lower-case and one upper-case letter for all others. A format has few shapes (`" ###-##-####"` has one), so each is
cut by the tokenizer itself, as a whole, with everything that it looks ahead to. Whether a tokenizer treats characters
alike is read off its pre-tokenizer and normalizer (`interchangeable`); where that cannot be told, the shapes are the
texts themselves, as long as they are few.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from lightning_exposure.tokenization.graphs.characters import Texts
from lightning_exposure.tokenization.huggingface.added_tokens import AddedToken, find_matches, fold, matters
from lightning_exposure.tokenization.huggingface.tokenizer_json import parts_of

EITHER, INSIDE, APART = 0, 1, 2
"""Two neighbouring characters: it depends on the rest of the text; always in one pre-token; never in one."""

Joints = list[dict[str, int]]
"""For each state of the texts and each character that may follow: how it stands to the one before it."""

LARGEST_NUMBER_OF_SHAPES = 1024

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


class Cutter(Protocol):
    """What knows the cuts of one text."""

    config: Mapping[str, Any]

    @property
    def added(self) -> Sequence[AddedToken]:
        """The added tokens that it looks for in texts."""
        ...

    def cuts(self, texts: Sequence[str], /) -> list[set[int]] | None:
        """For each text, the positions before which a pre-token begins or behind which one ends; None: unknown."""
        ...


def find_joints(texts: Texts, fixed: int, tokenizer: Cutter) -> Joints | None:
    """How each character of each text stands to the one before it.

    Args:
        texts: All texts.
        fixed: How many characters all of them begin with.
        tokenizer: What cuts them.

    Returns:
        None if the texts have too many shapes, or may contain tokens that are cut out by their content.
    """
    beginning, states = fixed_part(texts, fixed)
    if matters(find_matches(texts, tokenizer.added), states):
        return None
    has_apostrophes = any(mark in edges for edges in texts.edges for mark in "'\u2019")
    alike = _among(texts, interchangeable(tokenizer.config, has_apostrophes=has_apostrophes))
    shapes = []
    for shape in _shapes(texts, beginning, states, alike):
        shapes.append(shape)
        if len(shapes) > LARGEST_NUMBER_OF_SHAPES:
            return None
        # The letter that stands for all letters may make an added token of what is none.
        if any(_looks_like(token, shape[0], fixed) for token in tokenizer.added):
            return None
    joints: Joints = [{} for _ in texts.edges]
    all_cuts = tokenizer.cuts([text for text, _ in shapes])
    if all_cuts is None:
        return None
    for (text, places), cuts in zip(shapes, all_cuts, strict=True):
        for position, possible in enumerate(places[:-1]):
            kind = APART if position in cuts or position == 0 else INSIDE
            for state in possible:
                for character in texts.edges[state]:
                    if text[position] in (character, alike.get(character)):
                        seen = joints[state].setdefault(character, kind)
                        joints[state][character] = kind if seen == kind else EITHER
    return joints


def interchangeable(config: Mapping[str, Any], *, has_apostrophes: bool = False) -> dict[str, str]:
    """Characters that the cuts do not tell apart, each with the one that stands for its kind.

    Args:
        config: A `tokenizer.json`.
        has_apostrophes: Whether the texts have any: what follows one may be a contraction (`'s`), cut off as such.

    Example:
        >>> alike = interchangeable({"pre_tokenizer": {"type": "Digits", "individual_digits": True}})
        >>> alike["7"], alike["q"]
        ('0', 'a')
        >>> interchangeable({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "12|q"}}})["Q"]
        'A'
    """
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


def _among(texts: Texts, alike: Mapping[str, str]) -> dict[str, str]:
    """The same, with characters that the texts have: the tokenizer may lack others."""
    present = {character for edges in texts.edges for character in edges} & alike.keys()
    chosen: dict[str, str] = {}
    for character in sorted(present):
        chosen.setdefault(alike[character], character)
    return {character: chosen[alike[character]] for character in present}


def fixed_part(texts: Texts, fixed: int) -> tuple[str, list[int]]:
    """What all texts begin with, and the states on the way, the last one included."""
    states, beginning = [texts.start], ""
    while len(beginning) < fixed:
        ((character, state),) = texts.edges[states[-1]].items()
        states.append(state)
        beginning += character
    return beginning, states


def _looks_like(token: AddedToken, shape: str, fixed: int) -> bool:
    """Whether a shape has an added token behind the fixed part or over its end."""
    if not token.folded:
        return shape.find(token.content, max(0, fixed - len(token.content) + 1)) >= 0
    return token.content in fold(shape[max(0, fixed - len(token.content) + 1) :])


def _shapes(
    texts: Texts, beginning: str, fixed: Sequence[int], alike: Mapping[str, str]
) -> Iterator[tuple[str, list[frozenset[int]]]]:
    """Every shape, with the states that a text of that shape may be in at each of its positions."""
    stack = [(beginning, [frozenset([state]) for state in fixed])]
    while stack:
        shape, places = stack.pop()
        following: dict[str, set[int]] = {}
        for state in places[-1]:
            for character, target in texts.edges[state].items():
                following.setdefault(alike.get(character, character), set()).add(target)
        if any(texts.accepting[state] for state in places[-1]):
            yield shape, places
        stack.extend((shape + kind, [*places, frozenset(targets)]) for kind, targets in following.items())
