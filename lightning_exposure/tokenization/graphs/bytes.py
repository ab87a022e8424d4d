r"""The texts of a format, byte by byte, in the way a tokenizer's tokens spell them.

Bytes, because a token of a byte-level vocabulary may hold half of an "é". Most tokens add a fixed string of bytes to a
text, spaces included. Tokenizers that drop the spaces (WordPiece, word level) tell only whether a token begins a new
word; for them every pre-token begins with a mark, a byte that no text has, and spaces are left out: `"my 12-3"` is
`|my|12|-|3`. A token that begins a word has the mark in front of its text, one that goes on within a word has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization.graphs.characters import Texts
from lightning_exposure.tokenization.huggingface.pretokens import APART, EITHER, INSIDE, Joints

MARK = 0xFF
"""Begins a word; no UTF-8 text has this byte."""


class ByteTexts:
    """Texts as paths of bytes. The states of the texts keep their numbers; states between bytes come behind them.

    Args:
        texts: The texts, character by character.
        joints: How each character stands to the one before it; None: nothing is known.
        marked: Whether words begin with a mark, and spaces are left out.

    Attributes:
        edges: For each state, the bytes that may follow and the state after each.
        joints: For each state and byte, how it stands to the one before it: INSIDE, APART or EITHER.
        accepting: For each state, whether a text may end there.

    Raises:
        TokenizerError: Without spaces, texts cannot be told apart.
    """

    def __init__(self, texts: Texts, joints: Joints | None, *, marked: bool = False) -> None:
        self.edges: list[dict[int, int]] = [{} for _ in texts.edges]
        self.joints: list[dict[int, int]] = [{} for _ in texts.edges]
        self.marked = marked
        # Where bytes alone do not tell it: what the last byte of a character adds to the text.
        self._read: dict[tuple[int, int], str] = {}
        self._readings = texts.readings
        self._tails: dict[int, str] = {}  # with marks: the spaces behind the last word
        ends = list(texts.accepting)
        for state, edges in enumerate(texts.edges):
            if marked:
                self._add_words(state, texts, joints, ends)
            else:
                for character, target in edges.items():
                    joint = EITHER if joints is None else joints[state].get(character, EITHER)
                    self._add(state, character, target, joint)
        self.accepting: NDArray[np.bool_] = np.array(ends + [False] * (len(self.edges) - len(ends)), dtype=bool)

    def __len__(self) -> int:
        """How many states there are."""
        return len(self.edges)

    @property
    def plain(self) -> bool:
        """Whether bytes read as what they are: nothing is marked, swallowed or put in."""
        return not (self.marked or self._readings)

    def after(self, data: bytes, state: int) -> int | None:
        """The state after some bytes; None if they do not fit."""
        at: int | None = state
        for byte in data:
            at = None if at is None else self.edges[at].get(byte)
        return at

    def text(self, data: bytes, state: int) -> str:
        """The characters that bytes from a state stand for."""
        if self.plain:
            return data.decode("utf-8", errors="replace")
        characters = []
        for byte in data:
            characters.append(self._read.get((state, byte), ""))
            state = self.edges[state][byte]
        return "".join(characters) + self._tails.get(state, "")

    def reachable(self, start: int) -> list[int]:
        """The states that can be reached from one, itself first, each before all that come behind it."""
        order: list[int] = []
        seen = {start}
        stack = [(start, iter(self.edges[start].values()))]
        while stack:
            state, following = stack[-1]
            after = next(following, None)
            if after is None:
                stack.pop()
                order.append(state)
            elif after not in seen:
                seen.add(after)
                stack.append((after, iter(self.edges[after].values())))
        return order[::-1]

    def _add(
        self, state: int, character: str, target: int, joint: int, spaces: str = "", place: int | None = None
    ) -> None:
        """An edge for a character: one step per byte, shared with characters that begin with the same bytes.

        The character stands at a state of the texts, from which spaces that are left out may lead to a place.
        """
        origin = state if place is None else place
        reading = spaces + self._readings.get((origin, character), character)
        *first, last = character.encode()
        for byte in first:
            self._note(state, byte, joint)
            state = self.edges[state].setdefault(byte, len(self.edges))
            if state == len(self.edges):
                self.edges.append({})
                self.joints.append({})
            joint = INSIDE
        self._note(state, last, joint)
        same = self.edges[state].setdefault(last, target) == target
        if not same or (not self.plain and self._read.setdefault((state, last), reading) != reading):
            raise TokenizerError(
                "the tokenizer drops spaces, and without them texts of the format cannot be told apart at "
                f"{character!r}. Use a format that has the same spaces in all secrets."
            )

    def _note(self, state: int, byte: int, joint: int) -> None:
        seen = self.joints[state].setdefault(byte, joint)
        self.joints[state][byte] = joint if seen == joint else EITHER

    def _add_words(self, state: int, texts: Texts, joints: Joints | None, ends: list[bool]) -> None:
        """The edges of a state when words begin with a mark: what goes on within a word, and what begins one."""
        within: dict[str, int] = {}
        beginnings: list[tuple[str, str, int, int]] = []
        for spaces, place in _behind_spaces(texts.edges, state):
            for character, target in texts.edges[place].items():
                if character.isspace():
                    continue
                joint = EITHER if joints is None else joints[state].get(character, EITHER)
                if not spaces and joint != APART:
                    within[character] = target
                if spaces or joint != INSIDE:
                    beginnings.append((spaces, character, target, place))
            if spaces and texts.accepting[place]:
                if ends[state]:
                    raise TokenizerError(
                        "the tokenizer drops spaces, and some secrets differ only in spaces at their end. Use a "
                        "format that has the same spaces in all secrets."
                    )
                ends[state] = True
                self._tails[state] = spaces
        for character, target in within.items():
            self._add(state, character, target, INSIDE)
        if beginnings:
            word = len(self.edges)
            self.edges.append({})
            self.joints.append({})
            self.edges[state][MARK], self.joints[state][MARK] = word, APART
            for spaces, character, target, place in beginnings:
                self._add(word, character, target, INSIDE, spaces, place)


def _behind_spaces(edges: Sequence[Mapping[str, int]], state: int) -> list[tuple[str, int]]:
    """A state, and those that only spaces lead to from it, with the spaces."""
    found = [("", state)]
    for spaces, place in found:  # grows while it is walked
        found.extend((spaces + c, target) for c, target in edges[place].items() if c.isspace())
    return found
