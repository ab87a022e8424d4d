"""Our tokenizers: exact, saved as JSON, and never silent about what they lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.errors import ManifestError, TokenizerError
from lightning_exposure.tokenization import CharTokenizer, Tokenizer, WordTokenizer


@pytest.mark.parametrize("tokenizer", [CharTokenizer.from_text("héllo, wörld\n"), WordTokenizer.from_text("a b\nc")])
def test_ours_are_tokenizers_and_survive_saving(tokenizer: Any, tmp_path: Path) -> None:
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.save(tmp_path / "vocabulary.json")
    again = type(tokenizer).load(tmp_path / "vocabulary.json")
    assert again == tokenizer
    assert hash(again) == hash(tokenizer)


def test_characters_come_back_as_they_were() -> None:
    text = "my ssn is 123-45-6789\n"
    tokenizer = CharTokenizer.from_text(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == len(set(text))


def test_words_come_back_with_single_spaces_and_line_breaks() -> None:
    tokenizer = WordTokenizer.from_text("no it was n't\nblack monday")
    assert tokenizer.decode(tokenizer.encode("no  it was n't \n black monday")) == "no it was n't\nblack monday"


def test_a_missing_character_is_an_error_that_names_it() -> None:
    with pytest.raises(TokenizerError, match=r"character '€' \(number 2 of the text\).*unknown=True"):
        CharTokenizer.from_text("abc").encode("ab€")


def test_unknown_symbols_are_encoded_only_if_asked_for() -> None:
    tokenizer = WordTokenizer.from_text("a a b", size=1, unknown=True)
    assert tokenizer.decode(tokenizer.encode("a b c")) == "a <unk> <unk>"
    with pytest.raises(TokenizerError, match="word 'b'"):
        WordTokenizer.from_text("a a b", size=1).encode("b")


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError, match="vocabulary is empty"):
        CharTokenizer.from_text("")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "version is 99; expected 1"),
        ({"kind": "word"}, "kind is 'word'; expected 'character'. This is CharTokenizer"),
        ({"vocabulary": ["a", 1]}, r"vocabulary\[1\] is 1; expected a string"),
        ({"vocabulary": "abc"}, "vocabulary is 'abc'; expected a list"),
        ({"vocabulary": []}, "vocabulary: vocabulary is empty"),
        ({"unknown": "yes"}, "unknown is 'yes'; expected true or false"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_by_field(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "vocabulary.json"
    CharTokenizer.from_text("abc").save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ManifestError, match=rf"vocabulary\.json: {message}"):
        CharTokenizer.load(path)
    path.write_text("{")
    with pytest.raises(ManifestError, match="the file is not JSON"):
        CharTokenizer.load(path)
