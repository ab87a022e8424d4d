"""`CharTokenizer`: one token per character."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.tokenization._symbols import SymbolTokenizer


class CharTokenizer(SymbolTokenizer):
    r"""One token per character.

    Example:
        >>> tokenizer = CharTokenizer.from_text("my ssn is 0123456789-\n")
        >>> tokenizer.decode(tokenizer.encode("ssn 12"))
        'ssn 12'
        >>> tokenizer.encode("€5")
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.TokenizerError: text has the character '€' (number 0 of the text), which is not ...
    """

    kind = "character"
    symbol_name = "character"

    @classmethod
    def from_text(cls, *texts: str, unknown: bool = False) -> CharTokenizer:
        """A tokenizer of all the characters in some texts, in sorted order."""
        return cls(sorted(set().union(*cls._checked(texts))), unknown=unknown)

    def encode(self, text: str, /) -> list[int]:
        """One id per character.

        Raises:
            TokenizerError: A character is not in the vocabulary.
        """
        return self._lookup(text)

    def decode(self, ids: Sequence[int], /) -> str:
        """The characters of some ids."""
        return "".join(self._symbols_of(ids))

    def pieces(self) -> list[bytes | None]:
        """What each token adds to a text: its character; None for `<unk>`, which stands for no text."""
        return [None if token == self._unknown_id else symbol.encode() for token, symbol in enumerate(self._symbols)]
