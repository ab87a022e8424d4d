"""What `CharTokenizer` and `WordTokenizer` share: a list of symbols and its inverse, kept as JSON.

A text that a vocabulary cannot express is an error here, never a silent `<unk>`: a secret whose digits were all `<unk>`
would look perfectly memorized.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lightning_exposure.errors import ManifestError, TokenizerError

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
