r"""The texts of a format, byte by byte, in the way a tokenizer's tokens spell them.

Bytes, because a token of a byte-level vocabulary may hold half of an "é". Most tokens add a fixed string of bytes to a
text, spaces included. Tokenizers that drop the spaces (WordPiece, word level) tell only whether a token begins a new
word; for them every pre-token begins with a mark, a byte that no text has, and spaces are left out: `"my 12-3"` is
`|my|12|-|3`. A token that begins a word has the mark in front of its text, one that goes on within a word has not.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization.graphs.pretoken_cuts import CUT, MAYBE_CUT, NO_CUT, PretokenCuts
from lightning_exposure.tokenization.graphs.texts import Texts, behind_spaces

WORD_MARK = 0xFF
"""Begins a word; no UTF-8 text has this byte."""


class ByteTexts:
    """Texts as paths of bytes. The states of the texts keep their numbers; states between bytes come behind them.

    Args:
        texts: The texts, character by character.
        cuts: Where they are cut into pre-tokens; None: nothing is known.
        marked: Whether words begin with a mark, and spaces are left out.

    Attributes:
        start: The state before the first byte.
        marked: Whether words begin with a mark.

    Raises:
        TokenizerError: Without spaces, texts cannot be told apart.
    """

    def __init__(self, texts: Texts, cuts: PretokenCuts | None, *, marked: bool = False) -> None:
        self._edges: list[dict[int, int]] = [{} for _ in range(len(texts))]
        self._cuts: list[dict[int, int]] = [{} for _ in range(len(texts))]
        self.start = texts.start
        self.marked = marked
        # Where bytes alone do not tell it: what the last byte of a character adds to the text.
        self._read: dict[tuple[int, int], str] = {}
        self._readings = texts.readings
        self._tails: dict[int, str] = {}  # with marks: the spaces behind the last word
        self._accepting = [texts.accepting(state) for state in range(len(texts))]
        for state in range(len(texts)):
            if marked:
                self._add_words(state, texts, cuts)
            else:
                for character, target in texts.edges(state).items():
                    self._add(state, character, target, _cut_before(cuts, state, character))

    def __len__(self) -> int:
        """How many states there are."""
        return len(self._edges)

    def edges(self, state: int, /) -> Mapping[int, int]:
        """The bytes that may follow at a state, and the state after each."""
        return self._edges[state]

    def accepting(self, state: int, /) -> bool:
        """Whether a text may end at a state."""
        return state < len(self._accepting) and self._accepting[state]

    def cuts(self, state: int) -> Mapping[int, int]:
        """For each byte that may follow at a state, whether the texts are cut before it: CUT, NO_CUT or MAYBE_CUT."""
        return self._cuts[state]

    @property
    def plain(self) -> bool:
        """Whether bytes read as what they are: nothing is marked, swallowed or put in."""
        return not (self.marked or self._readings)

    def text(self, data: bytes, state: int) -> str:
        """The characters that bytes from a state stand for."""
        if self.plain:
            return data.decode("utf-8", errors="replace")
        characters = []
        for byte in data:
            characters.append(self._read.get((state, byte), ""))
            state = self._edges[state][byte]
        return "".join(characters) + self._tails.get(state, "")

    def _add(
        self, state: int, character: str, target: int, cut: int, spaces: str = "", place: int | None = None
    ) -> None:
        """An edge for a character: one step per byte, shared with characters that begin with the same bytes.

        The character stands at a state of the texts, from which spaces that are left out may lead to a place.
        """
        origin = state if place is None else place
        reading = spaces + self._readings.get((origin, character), character)
        *first, last = character.encode()
        for byte in first:
            self._note(state, byte, cut)
            state = self._edges[state].setdefault(byte, len(self._edges))
            if state == len(self._edges):
                self._new_state()
            cut = NO_CUT
        self._note(state, last, cut)
        same = self._edges[state].setdefault(last, target) == target
        if not same or (not self.plain and self._read.setdefault((state, last), reading) != reading):
            raise TokenizerError(
                "the tokenizer drops spaces, and without them texts of the format cannot be told apart at "
                f"{character!r}. Use a format that has the same spaces in all secrets."
            )

    def _note(self, state: int, byte: int, cut: int) -> None:
        seen = self._cuts[state].setdefault(byte, cut)
        self._cuts[state][byte] = cut if seen == cut else MAYBE_CUT

    def _new_state(self) -> int:
        self._edges.append({})
        self._cuts.append({})
        return len(self._edges) - 1

    def _add_words(self, state: int, texts: Texts, cuts: PretokenCuts | None) -> None:
        """The edges of a state when words begin with a mark: what goes on within a word, and what begins one."""
        within: dict[str, int] = {}
        beginnings: list[tuple[str, str, int, int]] = []
        for spaces, place in behind_spaces(texts, state):
            for character, target in texts.edges(place).items():
                if character.isspace():
                    continue
                cut = _cut_before(cuts, state, character)
                if not spaces and cut != CUT:
                    within[character] = target
                if spaces or cut != NO_CUT:
                    beginnings.append((spaces, character, target, place))
            if spaces and texts.accepting(place):
                if self._accepting[state]:
                    raise TokenizerError(
                        "the tokenizer drops spaces, and some secrets differ only in spaces at their end. Use a "
                        "format that has the same spaces in all secrets."
                    )
                self._accepting[state] = True
                self._tails[state] = spaces
        for character, target in within.items():
            self._add(state, character, target, NO_CUT)
        if beginnings:
            word = self._new_state()
            self._edges[state][WORD_MARK], self._cuts[state][WORD_MARK] = word, CUT
            for spaces, character, target, place in beginnings:
                self._add(word, character, target, NO_CUT, spaces, place)


def _cut_before(cuts: PretokenCuts | None, state: int, character: str) -> int:
    return MAYBE_CUT if cuts is None else cuts[state].get(character, MAYBE_CUT)
