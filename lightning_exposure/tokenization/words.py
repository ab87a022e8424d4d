"""`WordTokenizer`: one token per word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from lightning_exposure.secrets.formats.graph import steps_behind
from lightning_exposure.tokenization._lines import LineTexts, word_pieces
from lightning_exposure.tokenization._spelling_rules import SpellingRules
from lightning_exposure.tokenization._symbols import UNKNOWN, SymbolTokenizer
from lightning_exposure.tokenization.graphs.texts import Texts

_WORDS = re.compile(r"\n|\S+")


class WordTokenizer(SymbolTokenizer):
    """One token per word: words are separated by spaces, and a line break is a word of its own.

    Example:
        >>> tokenizer = WordTokenizer.from_text("the code is 1 2 3")
        >>> tokenizer.encode("code is 3")
        [1, 2, 5]
        >>> tokenizer.decode([1, 2, 5])
        'code is 3'
    """

    kind = "word"
    symbol_name = "word"

    @classmethod
    def from_text(cls, *texts: str, size: int | None = None, unknown: bool = False) -> WordTokenizer:
        """A tokenizer of the words in some texts.

        Args:
            *texts: Where the words come from.
            size: Keep only this many of the most frequent words; needs `unknown=True` to encode the others.
            unknown: Encode words that are not in the vocabulary as `<unk>` instead of raising.
        """
        counts = Counter(word for text in cls._checked(texts) for word in _WORDS.findall(text))
        kept = counts if size is None else [word for word, _ in counts.most_common(size)]
        return cls(kept, unknown=unknown)

    def encode(self, text: str, /) -> list[int]:
        """One id per word.

        Raises:
            TokenizerError: A word is not in the vocabulary.
        """
        return self._lookup(_WORDS.findall(text))

    def decode(self, ids: Sequence[int], /) -> str:
        """The words of some ids, one space between two words and none beside a line break."""
        return re.sub(" ?\n ?", "\n", " ".join(self._symbols_of(ids)))

    def spelling_rules(self, texts: Texts, fixed: int, /) -> Iterator[SpellingRules]:
        """How texts of several lines are spelled: between words stands a space, beside a line break none."""
        if "\n" in steps_behind(texts):
            lines = LineTexts(texts)
            yield SpellingRules(lines, word_pieces(self.vocabulary, UNKNOWN), lines.pretoken_cuts(), marked=True)
