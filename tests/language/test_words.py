"""Words as tokens: digits and number words with large vocabularies, checked against full passes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.errors import TokenizerError
from lightning_exposure.language import WordTokenizer
from lightning_exposure.walks import score
from tests import oracle
from tests.toys import Recurrent, sharpened

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
DIGITS = SecretFormat("my number is # # #")
WORDS = SecretFormat("my number is {digit} {digit} {digit}", digit=NAMES)
LONGER = SecretFormat("my number is {digit} {digit} , {digit} {digit} .", digit=NAMES)
SEVERAL = SecretFormat("flight to {city} at {hour}", city=["york", "new york", "new york city", "rome"], hour=NAMES)


def vocabulary(size: int) -> WordTokenizer:
    used = {word for format in (DIGITS, WORDS, LONGER, SEVERAL) for text in format.covering() for word in text.split()}
    return WordTokenizer([*(f"word{i}" for i in range(size - len(used))), *sorted(used)])


@cache
def setup(format: SecretFormat, size: int) -> tuple[Any, WordTokenizer, dict[str, float]]:
    """A model, its words, and what every secret costs: each is read in full."""
    tokenizer = vocabulary(size)
    model = sharpened(Recurrent(tokenizer.vocab_size), seed=1, dtype=torch.float32)
    texts, free = oracle.all_texts(format), oracle.shared_tokens(format, tokenizer)
    lengths: dict[int, list[str]] = {}
    for text in texts:
        lengths.setdefault(len(text.split()), []).append(text)
    costs = {}
    for alike in lengths.values():
        for begin in range(0, len(alike), 100):
            ids = torch.tensor([tokenizer.encode(text) for text in alike[begin : begin + 100]])
            with torch.no_grad():
                chances = torch.log_softmax(model(ids)[0][:, :-1].double(), dim=-1)
            bits = -chances.gather(2, ids[:, 1:, None])[:, free - 1 :, 0].sum(dim=1) / math.log(2)
            costs.update(zip(alike[begin : begin + 100], bits.tolist(), strict=True))
    return model, tokenizer, costs


CASES = [
    pytest.param(DIGITS, 10_000, id="digits"),
    pytest.param(WORDS, 10_000, id="number words"),
    pytest.param(LONGER, 300, id="ten thousand"),
    pytest.param(SEVERAL, 300, id="several words in a blank"),
]


@pytest.mark.parametrize(("format", "size"), CASES)
def test_costs_and_ranks_are_those_of_brute_force(format: SecretFormat, size: int) -> None:
    model, tokenizer, costs = setup(format, size)
    assert tokenizer.vocab_size == size
    tree = SecretTree(model, format, tokenizer)
    np.testing.assert_allclose(score(tree, list(costs)).costs, list(costs.values()), atol=1e-3)
    ordered = sorted(costs, key=costs.__getitem__)
    secrets = ordered[:: max(1, len(ordered) // 7)]
    for estimate in measure_exposure(tree, secrets, method="exact"):
        rank = oracle.rank(estimate.secret, costs, 0.0)
        near = sum(abs(cost - costs[estimate.secret]) < 1e-4 for cost in costs.values())
        assert abs(estimate.rank - rank) < near, "but for secrets that cost the same to four digits"
    assert [candidate.text for candidate in extract(tree, top_k=3).candidates] == ordered[:3]


def test_a_word_that_the_vocabulary_lacks_is_refused_even_if_it_would_be_unknown() -> None:
    tokenizer = WordTokenizer([word for word in vocabulary(100).vocabulary if word != "seven"], unknown=True)
    model = Recurrent(tokenizer.vocab_size)
    with pytest.raises(TokenizerError, match="<unk>"):
        SecretTree(model, WORDS, tokenizer)
