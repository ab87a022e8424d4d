"""Texts of several lines for a tokenizer of words: no space stands beside a line break, which is a word of its own.

Between two words a token adds a space and its word, behind a line break the word alone. So the tokens are taken to
begin words, with a mark, and to drop spaces; and the line break, which is no space then, has a sign in its place.
"""

from __future__ import annotations

from lightning_exposure.tokenization._vocabulary import Pieces
from lightning_exposure.tokenization.graphs.bytes import MARK
from lightning_exposure.tokenization.graphs.characters import Texts
from lightning_exposure.tokenization.huggingface.pretokens import APART, EITHER, INSIDE, Joints
from lightning_exposure.tokenization.tokenizers import UNKNOWN, WordTokenizer

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
            for outgoing in texts.edges
        ]
        super().__init__(edges, texts.accepting, texts.start, texts.before)
        self._plain = texts
        self.readings = {(state, _SIGN): "\n" for state, outgoing in enumerate(edges) if _SIGN in outgoing}

    @property
    def plain(self) -> Texts:
        """The texts with their line breaks."""
        return self._plain

    def narrowed(self, known: str) -> LineTexts:
        """Only those whose secret begins with a known text, which some of them must."""
        return LineTexts(self._plain.narrowed(known))

    def joints(self) -> Joints:
        """How each character stands to the one before it: always apart beside a line break, never elsewhere."""
        before: list[set[bool]] = [set() for _ in self.edges]  # whether what leads to a state is a line break
        before[self.start].add(True)  # a text begins a word, too
        for outgoing in self.edges:
            for character, target in outgoing.items():
                before[target].add(character == _SIGN)
        kinds = {frozenset({True}): APART, frozenset({False}): INSIDE}
        return [
            {
                character: APART if character == _SIGN else kinds.get(frozenset(before[state]), EITHER)
                for character in outgoing
            }
            for state, outgoing in enumerate(self.edges)
        ]


def word_pieces(tokenizer: WordTokenizer) -> Pieces:
    """What each token of a tokenizer of words adds to a text, with marks and signs."""
    return [
        None if word == UNKNOWN else bytes([MARK]) + (_SIGN if word == "\n" else word).encode()
        for word in tokenizer.vocabulary
    ]
