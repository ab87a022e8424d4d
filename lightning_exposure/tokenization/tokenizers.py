"""How text becomes token ids: the `Tokenizer` protocol, and two small tokenizers of our own.

Anything with `encode`, `decode` and `vocab_size` is a tokenizer to this library. A text that a vocabulary cannot
express is an error here, never a silent `<unk>`: a secret whose digits were all `<unk>` would look perfectly
memorized.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from lightning_exposure.errors import ManifestError, TokenizerError

UNKNOWN = "<unk>"
_VERSION = 1
_WORDS = re.compile(r"\n|\S+")


@runtime_checkable
class Tokenizer(Protocol):
    """What the library asks of a tokenizer. Hugging Face's and ours both fit."""

    @property
    def vocab_size(self) -> int:
        """How many token ids there are: ids run from 0 to `vocab_size - 1`."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of some token ids."""
        ...


_Self = TypeVar("_Self", bound="_VocabularyTokenizer")


class _VocabularyTokenizer:
    """What `CharTokenizer` and `WordTokenizer` share: a list of symbols and its inverse, kept as JSON."""

    kind: str
    symbol_name: str

    def __init__(self, vocabulary: Iterable[str], *, unknown: bool = False) -> None:
        symbols = list(dict.fromkeys(vocabulary))
        if unknown and UNKNOWN not in symbols:
            symbols.insert(0, UNKNOWN)
        if not symbols:
            raise TokenizerError(
                f"vocabulary is empty; {type(self).__name__} needs at least one {self.symbol_name}. "
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
        if not isinstance(other, _VocabularyTokenizer):
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
                    f"the vocabulary of {self.vocab_size} {self.symbol_name}s. Build the tokenizer from text that "
                    f"contains it, or ask for {UNKNOWN} with unknown=True."
                )
            ids.append(found)
        return ids

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as a JSON file."""
        content = {
            "version": _VERSION,
            "kind": self.kind,
            "unknown": self._unknown_id is not None,
            "vocabulary": list(self._symbols),
        }
        Path(path).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls: type[_Self], path: str | Path) -> _Self:
        """Read a vocabulary that `save` wrote.

        Raises:
            ManifestError: The file is not one that `save` of this class wrote; names the file and the field.
        """
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path}: not a JSON file ({error}); expected one that save() wrote.") from error
        if not isinstance(content, dict):
            raise ManifestError(f"{path}: holds {type(content).__name__}; expected an object that save() wrote.")
        expected: dict[str, object] = {"version": _VERSION, "kind": cls.kind}
        for field, value in expected.items():
            if content.get(field) != value:
                given = repr(content[field]) if field in content else "missing"
                raise ManifestError(
                    f"{path}: {field} is {given}; {cls.__name__} expects {value!r}. Load it with the class and "
                    "the version of this library that wrote it."
                )
        vocabulary = content.get("vocabulary")
        if not isinstance(vocabulary, list) or not all(isinstance(symbol, str) for symbol in vocabulary):
            raise ManifestError(f"{path}: vocabulary is not a list of strings; write the file again with save().")
        if not isinstance(content.get("unknown"), bool):
            raise ManifestError(f"{path}: unknown is not true or false; write the file again with save().")
        return cls(vocabulary, unknown=content["unknown"])


class CharTokenizer(_VocabularyTokenizer):
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
        return cls(sorted(set().union(*texts)), unknown=unknown)

    def encode(self, text: str, /) -> list[int]:
        """One id per character.

        Raises:
            TokenizerError: A character is not in the vocabulary.
        """
        return self._lookup(text)

    def decode(self, ids: Sequence[int], /) -> str:
        """The characters of some ids."""
        return "".join(self._symbols[i] for i in ids)


class WordTokenizer(_VocabularyTokenizer):
    """One token per word: words stand between spaces, and a line break is a word of its own.

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
        counts = Counter(word for text in texts for word in _WORDS.findall(text))
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
        return re.sub(" ?\n ?", "\n", " ".join(self._symbols[i] for i in ids))
