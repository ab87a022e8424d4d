r"""Added tokens: they are cut out of a text before all else, with the spaces beside them if they are made so.

A token that was added to a tokenizer (`add_tokens`) is looked for in the text itself. What stands between two of them
is spelled as if it were a text of its own, so that some tokenizers put a space before it. And a token with `lstrip` or
`rstrip` swallows the spaces on that side: `"word pin"` becomes `word` and ` pin`, and no token for the space is left.

So what an added token adds to a text is not its content. Here the texts get, beside the way over the characters, one
edge for each added token that may stand there, a *sign*, which reads as all the characters that the token covers.
Which of the ways is the canonical one is left to the tokenizer: a token may be part of a longer one, or stand inside a
word where it is not looked for (`single_word`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization.graphs.texts import Stretch, Texts, behind_spaces
from lightning_exposure.tokenization.huggingface._tokenizer_json import Config, added_tokens, parts_of

_FIRST_SIGN = 0x100000
"""Signs are characters of the last private plane of Unicode, which no text has."""


@dataclass(frozen=True)
class AddedToken:
    """What is known of an added token.

    Attributes:
        number: Its id.
        content: What is looked for.
        folded: Whether the normalizer may make the content of other characters: then case and accents do not count.
        lstrip: Whether it swallows the spaces before it.
        rstrip: Whether it swallows the spaces behind it.
        single_word: Whether it is only found where no letter or digit stands beside it.
        before_all: Whether it is looked for before the normalizer changes the text.
        by_model: Whether this is not the added token, but the same token as the model itself may find it in a text.
    """

    number: int
    content: str
    folded: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    before_all: bool = True
    by_model: bool = False

    def same(self, character: str) -> str:
        """A character of a text as it is compared with the content."""
        return fold(character) if self.folded else character


@dataclass(frozen=True)
class Match:
    """An added token that may stand in the texts.

    Attributes:
        added: The token.
        covered: What it covers, with the spaces that it swallows.
    """

    added: AddedToken
    covered: Stretch


def fold(text: str) -> str:
    r"""A text without case, accents and kinds of spaces: what no normalizer tells apart that another one does.

    Example:
        >>> fold("Zo\u00eb\u2581PIN")
        'zoe pin'
    """
    plain = unicodedata.normalize("NFKD", text).casefold()
    shown = (" " if c.isspace() or c == "\u2581" else c for c in plain if not unicodedata.combining(c))
    return "".join(shown)


def added_in(config: Config, normalizer: Any, *, encode_special_tokens: bool = False) -> list[AddedToken]:
    """The added tokens of a `tokenizer.json` that are looked for in texts.

    Args:
        config: The file.
        normalizer: The tokenizer's own, with `normalize_str`; None if it has none.
        encode_special_tokens: Whether special tokens are spelled as text.
    """
    found = []
    for number, entry in added_tokens(config).items():
        if not entry["content"] or (entry.get("special") and encode_special_tokens):
            continue
        folded = bool(entry.get("normalized")) and normalizer is not None
        content = fold(normalizer.normalize_str(entry["content"])) if folded else entry["content"]
        if not content:  # the normalizer leaves nothing to look for
            continue
        strips = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word")}
        before_all = not entry.get("normalized")
        found.append(AddedToken(number, content, folded=folded, before_all=before_all, **strips))
    return found


_found: WeakKeyDictionary[Texts, dict[tuple[AddedToken, ...], list[Match]]] = WeakKeyDictionary()
"""What was looked for already: several who build one tree ask for the same."""


def find_matches(texts: Texts, added: Sequence[AddedToken]) -> list[Match]:
    """Everywhere that an added token may stand in the texts, each with all spaces that it may swallow."""
    known, key = _found.setdefault(texts, {}), tuple(added)
    if key not in known:
        known[key] = _find_matches(texts, added)
    return known[key]


def _find_matches(texts: Texts, added: Sequence[AddedToken]) -> list[Match]:
    by_first: dict[str, list[AddedToken]] = {}
    for token in added:
        by_first.setdefault(token.content[:1], []).append(token)
    some_folded = any(token.folded for token in added)
    before = _only_spaces_before(texts) if any(token.lstrip for token in added) else {}
    second_states = set(texts.edges(texts.start).values()) - {texts.start}
    found: dict[Match, None] = {}
    for state in range(len(texts)):
        edges = texts.edges(state)
        firsts = {c for character in edges for c in (character, fold(character)[:1] if some_folded else character)}
        for token in {token: None for first in sorted(firsts) for token in by_first.get(first, [])}:
            for text, end in _readings(texts, state, token):
                beginnings = [("", state), *(before.get(state, []) if token.lstrip else [])]
                if texts.before == " " and state in second_states:
                    beginnings.append((" ", texts.start))  # no space is put before a token that begins a text
                endings = _behind_all_spaces(texts, end) if token.rstrip else [("", end)]
                for ahead, start in beginnings:
                    for more, stop in endings:
                        found[Match(token, Stretch(start, ahead + text + more, stop))] = None
    return list(found)


def _readings(texts: Texts, state: int, token: AddedToken) -> Iterator[tuple[str, int]]:
    """The texts from a state in which a token is found, and the states behind them."""
    stack = [(state, token.content, "")]
    while stack:
        at, left, text = stack.pop()
        if not left:
            yield text, at
            continue
        for character, target in texts.edges(at).items():
            same = token.same(character)
            if left.startswith(same) and (same or text):
                stack.append((target, left[len(same) :], text + character))


def _only_spaces_before(texts: Texts) -> dict[int, list[tuple[str, int]]]:
    """For each state, those from which only spaces lead to it, with the spaces."""
    last: dict[int, list[tuple[str, int]]] = {}
    for state in range(len(texts)):
        for character, target in texts.edges(state).items():
            if character.isspace():
                last.setdefault(target, []).append((character, state))
    found: dict[int, list[tuple[str, int]]] = {}
    for state, steps in last.items():
        reached = list(steps)
        for spaces, place in reached:  # grows while it is walked
            reached.extend((character + spaces, earlier) for character, earlier in last.get(place, []))
        found[state] = reached
    return found


def _behind_all_spaces(texts: Texts, state: int) -> list[tuple[str, int]]:
    """Where a text may be when all spaces from a state on are swallowed."""
    return [
        (spaces, place)
        for spaces, place in behind_spaces(texts, state)
        if texts.accepting(place) or not all(c.isspace() for c in texts.edges(place))
    ]


def matters(matches: Sequence[Match], fixed: Sequence[int]) -> bool:
    """Whether some secrets have an added token behind the fixed part, over its end, or only for what follows it.

    Args:
        matches: Where added tokens may stand.
        fixed: The states of what all texts begin with, the last one included.
    """
    position = {state: i for i, state in enumerate(fixed)}
    end = len(fixed) - 1
    return any(
        position.get(match.covered.end, end + 1) + match.added.single_word > end or match.covered.start not in position
        for match in matches
    )


class CutTexts(Texts):
    """Texts with an edge for each added token that may stand in them; the states of the texts keep their numbers.

    Args:
        texts: The texts.
        added: The added tokens.
        config: The `tokenizer.json`.

    Attributes:
        signs: The character that stands for each added token.
        matches: Where added tokens may stand.

    Raises:
        TokenizerError: An added token swallows what texts differ in.
    """

    def __init__(self, texts: Texts, added: Sequence[AddedToken], config: Config) -> None:
        states = range(len(texts))
        self._signed_edges = [dict(texts.edges(state)) for state in states]
        accepting = [texts.accepting(state) for state in states]
        super().__init__(self._signed_edges, accepting, texts.start, texts.before)
        self._plain, self._added, self._config = texts, added, config
        self.signs = {token.number: chr(_FIRST_SIGN + i) for i, token in enumerate(added)}
        self.matches = find_matches(texts, added)
        by_model, by_normalizer = _put_before_sections(config)
        fresh: dict[tuple[int, bool], int] = {}
        for match in self.matches:
            end = match.covered.end
            always = by_normalizer and match.added.before_all
            if (by_model or always) and not match.added.by_model:
                end = self._fresh(texts.edges(end), end, always, fresh)
            self._add(match, end)
        for (state, _), section in fresh.items():  # one added token may follow another at once
            signs = {c: target for c, target in self._edges[state].items() if c in set(self.signs.values())}
            self._signed_edges[section].update(signs)
            self.readings.update({(section, sign): self.readings[state, sign] for sign in signs})

    @property
    def plain(self) -> Texts:
        """The texts alone."""
        return self._plain

    def narrowed(self, known: str) -> CutTexts:
        """Only those whose secret begins with a known text, which some of them must."""
        return CutTexts(self._plain.narrowed(known), self._added, self._config)

    def cut_out_over(self, position: int, fixed: Sequence[int], /) -> bool:
        """Whether an added token may reach over a position of the fixed part, or is there or not for what follows."""
        behind = {state: i for i, state in enumerate(fixed)}
        return any(
            behind.get(match.covered.start, position) < position
            and behind.get(match.covered.end, len(fixed)) + match.added.single_word > position
            for match in self.matches
        )

    def _add(self, match: Match, end: int) -> None:
        """An edge for an added token."""
        sign, covered = self.signs[match.added.number], match.covered
        same_end = self._signed_edges[covered.start].setdefault(sign, end) == end
        if not same_end or self.readings.setdefault((covered.start, sign), covered.text) != covered.text:
            raise TokenizerError(
                f"the added token {match.added.content!r} swallows the spaces beside it, or stands for several texts, "
                f"and secrets differ in those: {covered.text!r} and {self.readings[covered.start, sign]!r} become the "
                "same. Use a format that has the same spaces in all secrets, or a tokenizer without lstrip and rstrip."
            )

    def _fresh(self, edges: Mapping[str, int], state: int, always: bool, known: dict[tuple[int, bool], int]) -> int:
        """The state behind an added token, where a space is put before what follows, if it has none."""
        spaces = [character.isspace() for character in edges]
        if not spaces or (all(spaces) and not always):
            return state
        if any(spaces) and not always:
            raise TokenizerError(
                "the tokenizer puts a space before what follows an added token, and some secrets have one there "
                "themselves and some do not. Use a format that has the same spaces in all secrets."
            )
        key = state, always
        if key not in known:
            known[key] = len(self)
            self._signed_edges.append({" ": state})
            self._edges.append(self._signed_edges[-1])
            self._accepting.append(self._accepting[state])
            self.readings[known[key], " "] = ""
        return known[key]


def _put_before_sections(config: Config) -> tuple[bool, bool]:
    """Whether a space is put before what follows an added token: by the pre-tokenizer, and by the normalizer."""
    by_model = any(
        part.get("add_prefix_space", False)
        if part["type"] == "ByteLevel"
        else part["type"] == "Metaspace" and part.get("prepend_scheme", "always") == "always"
        for part in parts_of(config.get("pre_tokenizer"))
    )
    return by_model, any(part["type"] == "Prepend" for part in parts_of(config.get("normalizer")))
