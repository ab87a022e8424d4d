"""Texts of several lines for a tokenizer of words: no space stands beside a line break, which is a word of its own.

Between two words a token adds a space and its word, behind a line break the word alone. So the tokens are taken to
begin words, with a mark, and to drop spaces; and the line break, which is no space then, has a sign in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.tokenization.graphs.bytes import WORD_MARK
from lightning_exposure.tokenization.graphs.pretoken_cuts import CUT, MAYBE_CUT, NO_CUT, PretokenCuts
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.protocol import Pieces

_SIGN = "\U0010fffd"
"""Stands for a line break: a character that no text has."""


class LineTexts(Texts):
    """Texts with a sign for each line break; their states keep their numbers.

    Args:
        texts: The texts.
    """

    def __init__(self, texts: Texts) -> None:
        edges = [
            {_SIGN if character == "\n" else character: target for character, target in outgoing.items()}
            for outgoing in map(texts.edges, range(len(texts)))
        ]
        super().__init__(edges, [texts.accepting(state) for state in range(len(texts))], texts.start, texts.before)
        self._plain = texts
        self.readings = {(state, _SIGN): "\n" for state, outgoing in enumerate(edges) if _SIGN in outgoing}

    @property
    def plain(self) -> Texts:
        """The texts with their line breaks."""
        return self._plain

    def narrowed(self, known: str) -> LineTexts:
        """Only those whose secret begins with a known text, which some of them must."""
        return LineTexts(self._plain.narrowed(known))

    def pretoken_cuts(self) -> PretokenCuts:
        """Where the texts are cut: always beside a line break, nowhere else."""
        outgoing = [self.edges(state) for state in range(len(self))]
        before: list[set[bool]] = [set() for _ in outgoing]  # whether what leads to a state is a line break
        before[self.start].add(True)  # a text begins a word, too
        for edges in outgoing:
            for character, target in edges.items():
                before[target].add(character == _SIGN)
        kinds = {frozenset({True}): CUT, frozenset({False}): NO_CUT}
        return [
            {
                character: CUT if character == _SIGN else kinds.get(frozenset(before[state]), MAYBE_CUT)
                for character in edges
            }
            for state, edges in enumerate(outgoing)
        ]


def word_pieces(words: Sequence[str], unknown: str) -> Pieces:
    """What each token of a tokenizer of words adds to a text, with marks and signs."""
    return [
        None if word == unknown else bytes([WORD_MARK]) + (_SIGN if word == "\n" else word).encode() for word in words
    ]
