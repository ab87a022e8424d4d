"""What several parts of a tree need is looked for once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from lightning_exposure import SecretFormat
from lightning_exposure.tokenization import _vocabulary
from lightning_exposure.tokenization.huggingface import _added_tokens, _tokenizer_file
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.tokenization.spelling import Spelling
from tests.tokenization.subword_models import KINDS

SSN = SecretFormat("my ssn is ###-##-####")


class Counted:
    """A function, and how often it was called with the same first arguments."""

    def __init__(self, function: Any, arguments: int) -> None:
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self._function, self._arguments = function, arguments

    def __call__(self, *arguments: Any) -> Any:
        self.calls[arguments[: self._arguments]] += 1
        return self._function(*arguments)


def test_the_tokens_that_fit_at_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Unigram model is tried with several rules, each sharper than the one before: the same tokens fit."""
    counted = Counted(_vocabulary._find, 3)
    monkeypatch.setattr(_vocabulary, "_find", counted)
    spelling = Spelling(SSN, KINDS["Unigram"]())
    assert len(spelling._canonical) == 3
    assert counted.calls
    assert set(counted.calls.values()) == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_the_added_tokens_that_may_stand_in_the_texts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules, cuts, the certificate and the list of all secrets each ask for them."""
    counted = Counted(_added_tokens._find_matches, 1)
    monkeypatch.setattr(_added_tokens, "_find_matches", counted)
    tokenizer = Tokenizer.from_str(KINDS[kind]().to_str())
    tokenizer.add_tokens([AddedToken("12", lstrip=True)])
    Spelling(SSN, tokenizer)
    assert list(counted.calls.values()) == [1]


def test_the_file_of_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = KINDS["byte-level BPE"]()
    first = HuggingFaceTokenizer(tokenizer).file
    counted = Counted(_tokenizer_file.TokenizerFile, 0)
    monkeypatch.setattr(_tokenizer_file, "TokenizerFile", counted)
    for format in (SSN, SecretFormat("my pin is ####")):
        assert Spelling(format, tokenizer).tokenizer.file is first  # type: ignore[attr-defined]
    assert not counted.calls
