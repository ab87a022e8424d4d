"""What `CharTokenizer` and `WordTokenizer` share: a list of symbols and its inverse, kept as JSON.

A text that a vocabulary cannot express is an error here, never a silent `<unk>`: a secret whose digits were all `<unk>`
would look perfectly memorized.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

from lightning_exposure._checks import OutOfRangeError, instance, refusal
from lightning_exposure._files import read_json, write_json
from lightning_exposure.errors import TokenizerError

UNKNOWN = "<unk>"
_VERSION = 1


_Self = TypeVar("_Self", bound="SymbolTokenizer")


class SymbolTokenizer:
    """Has one token for each symbol of a list.

    Args:
        vocabulary: The symbols; a symbol's place in the list is its token id.
        unknown: Encode symbols that are not in the list as `<unk>` instead of raising.

    Raises:
        TokenizerError: There are no symbols.
    """

    kind: str
    symbol_name: str

    def __init__(self, vocabulary: Iterable[str], *, unknown: bool = False) -> None:
        if not isinstance(vocabulary, Iterable):
            expected = f"{self.symbol_name}s, such as {type(self).__name__}.from_text(text).vocabulary"
            raise refusal("vocabulary", vocabulary, expected, "Build it with from_text(text).", error=TokenizerError)
        symbols = list(dict.fromkeys(vocabulary))
        if unknown and UNKNOWN not in symbols:
            symbols.insert(0, UNKNOWN)
        if not symbols:
            raise TokenizerError(
                f"vocabulary is empty; expected at least one {self.symbol_name}. "
                "Build it from a text that is not empty."
            )
        self._symbols = tuple(symbols)
        self._ids = {symbol: i for i, symbol in enumerate(symbols)}
        self._unknown_id = self._ids[UNKNOWN] if unknown else None

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The symbols, in the order of their ids."""
        return self._symbols

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""
        return len(self._symbols)

    def __eq__(self, other: object) -> bool:
        """Equal if of one kind, with the same symbols and the same treatment of unknown ones."""
        if not isinstance(other, SymbolTokenizer):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        """Hash of what equality compares."""
        return hash(self._key())

    def __repr__(self) -> str:
        """Kind and size."""
        unknown = ", unknown=True" if self._unknown_id is not None else ""
        return f"{type(self).__name__}({self.vocab_size} {self.symbol_name}s{unknown})"

    def _key(self) -> tuple[object, ...]:
        return (self.kind, self._symbols, self._unknown_id)

    def _lookup(self, symbols: Sequence[str]) -> list[int]:
        try:  # the usual case, fast; if a symbol is missing, look again for which
            return list(map(self._ids.__getitem__, symbols))
        except KeyError:
            pass
        ids: list[int] = []
        for position, symbol in enumerate(symbols):
            found = self._ids.get(symbol, self._unknown_id)
            if found is None:
                raise TokenizerError(
                    f"text has the {self.symbol_name} {symbol!r} (number {position} of the text), which is not in "
                    f"the vocabulary; expected one of its {self.vocab_size} {self.symbol_name}s. Build the tokenizer "
                    f"from text that contains it, or ask for {UNKNOWN} with unknown=True."
                )
            ids.append(found)
        return ids

    def _symbols_of(self, ids: Sequence[int]) -> list[str]:
        try:
            return [self._symbols[token] for token in ids]
        except IndexError:
            token = next(token for token in ids if not -self.vocab_size <= token < self.vocab_size)
            expected = f"token ids below {self.vocab_size}, the size of the vocabulary"
            raise refusal(
                "ids", token, expected, "Use the tokenizer that encoded them.", error=OutOfRangeError
            ) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as a JSON file, in one step; an existing file is replaced."""
        content = {
            "version": _VERSION,
            "kind": self.kind,
            "unknown": self._unknown_id is not None,
            "vocabulary": self._symbols,
        }
        write_json(path, content, private=True)  # the words of a text may be secrets

    @staticmethod
    def _checked(texts: Sequence[str]) -> Sequence[str]:
        """The arguments of `from_text`: a list of texts, given as one, would make a symbol of each text."""
        for text in texts:
            instance("texts", text, str, "texts, each of them an argument", "Write from_text(*texts) for a list.")
        return texts

    @classmethod
    def load(cls: type[_Self], path: str | os.PathLike[str]) -> _Self:
        """Read a vocabulary that `save` wrote.

        Raises:
            ManifestError: The file is not one that `save` of this class wrote; names the file and the field.
        """
        root = read_json(path)
        root["version"].only(_VERSION)
        root["kind"].only(cls.kind, f"This is {cls.__name__}: load the file with the class that wrote it.")
        vocabulary = [symbol.as_(str) for symbol in root["vocabulary"].items()]
        unknown = root["unknown"].as_(bool)
        return root["vocabulary"].made(lambda: cls(vocabulary, unknown=unknown))
