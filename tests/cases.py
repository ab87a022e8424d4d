"""Combinations of model, format and tokenizer that every walk must get right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.tokenization import CharTokenizer, WordTokenizer
from tests import oracle
from tests.toys import MergingTokenizer, Nested, Recurrent, Stateless, sharpened

CHARACTERS = "abcdefghijklmnopqrstuvwxyz 0123456789-:."


@dataclass(frozen=True)
class Case:
    name: str
    make_model: Callable[[int], nn.Module]
    format: SecretFormat
    tokenizer: Any
    context: int | None = None

    @cached_property
    def model(self) -> Any:
        return sharpened(self.make_model(self.tokenizer.vocab_size), seed=1)

    @cached_property
    def costs(self) -> dict[str, float]:
        return oracle.costs(self.model, self.format, self.tokenizer, self.context)

    def tree(self, **options: Any) -> SecretTree:
        return SecretTree(self.model, self.format, self.tokenizer, context=self.context, **options)

    def __str__(self) -> str:
        return self.name


_chars = CharTokenizer.from_text(CHARACTERS)
_merging = MergingTokenizer(CHARACTERS)
_words = WordTokenizer.from_text("the code is 0 1 2 3 4 5 6 7 8 9 one two twenty twenty-two . end")
_pin = SecretFormat("my pin is ###")
_dashed = SecretFormat("ssn ##-##")
_names = SecretFormat("call {who} at #", who=["al", "alan", "bo", "bob", ""])
_tail = SecretFormat("say {word}", word=["a", "ab", "abc", "b", "ca"])

CASES = [
    Case("lstm", Recurrent, _pin, _chars),
    Case("gru", lambda v: Recurrent(v, nn.GRU), _dashed, _chars),
    Case("nested state", Nested, _pin, _chars),
    Case("stateless", Stateless, _pin, _chars),
    Case("stateless, short context", Stateless, _dashed, _chars, context=3),
    Case("word lists of different lengths", Recurrent, _names, _chars),
    Case("secrets that begin others", Recurrent, _tail, _chars),
    Case("letters and a literal end", Recurrent, SecretFormat("key: #?-#."), _chars),
    Case("checksum", Recurrent, SecretFormat("card ## ##", checksum="luhn"), _chars),
    Case("merged tokens", Recurrent, SecretFormat("ssn ###-#"), _merging),
    Case("merged tokens, stateless", Stateless, SecretFormat("pin is ###"), _merging),
    Case("merged tokens, word lists", Recurrent, SecretFormat("go {n}-#", n=["1", "12", "7", "127", "3"]), _merging),
    Case("words", Recurrent, SecretFormat("the code is # # #"), _words),
    Case(
        "number words",
        Recurrent,
        SecretFormat("the code is {n} {n} .", n=["one", "two", "twenty", "twenty-two"]),
        _words,
    ),
    Case("an optional end", Recurrent, SecretFormat("say no{end}", end=["", "w", "t"]), _chars),
]

FLOAT32 = Case(
    "lstm in float32", lambda v: sharpened(Recurrent(v, width=32), seed=2, dtype=torch.float32), _pin, _chars
)
