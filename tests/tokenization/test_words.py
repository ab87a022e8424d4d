"""Word level: a vocabulary of ten thousand words, secrets as digits between spaces and as number words."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.errors import TokenizerError
from lightning_exposure.tokenization import WordTokenizer
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.walks import enumerate_leaves, score
from tests import oracle
from tests.toys import Recurrent, sharpened

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
WORDS = SecretFormat("my number is {d} {d} {d}", d=DIGITS)
SPACED = SecretFormat("my number is # # #")


@cache
def ten_thousand_words() -> WordTokenizer:
    made_up = [f"word{number}" for number in range(10_000 - 24)]
    return WordTokenizer(["<eos>", "my", "number", "is", *DIGITS, *map(str, range(10)), *made_up])


@cache
def model() -> Recurrent:
    small: Recurrent = sharpened(Recurrent(10_000, width=8), seed=0)
    return small


@pytest.mark.parametrize("format", [WORDS, SPACED], ids=["number words", "digits"])
def test_trees_of_words_agree_with_the_oracle(format: SecretFormat) -> None:
    tokenizer = ten_thousand_words()
    assert tokenizer.vocab_size == 10_000
    tree = SecretTree(model(), format, tokenizer)
    assert tree.spelling.exact
    assert tree.spelling.root_text == "my number is"
    assert (tree.size, tree.automaton.depth, tree.automaton.shortest) == (1000, 3, 3)
    texts = format.sample(60, seed=1)
    free = oracle.shared_tokens(format, tokenizer)
    expected = [oracle.cost(model(), tokenizer.encode(text), free) for text in texts]
    np.testing.assert_allclose(score(tree, texts).costs, expected, atol=1e-9)
    found = [tree.text(tokens_of(path)) for leaves in enumerate_leaves(tree) for path in leaves.paths]
    assert sorted(found) == sorted(oracle.all_texts(format))


@pytest.mark.parametrize("format", [WORDS, SPACED], ids=["number words", "digits"])
def test_the_most_likely_number_is_found_and_its_rank_is_one(format: SecretFormat) -> None:
    tree = SecretTree(model(), format, ten_thousand_words())
    texts = oracle.all_texts(format)
    best = texts[int(np.argmin(score(tree, texts).costs))]
    found = extract(tree)
    assert (found.candidates[0].text, found.optimal) == (best, True)
    (estimate,) = measure_exposure(tree, [best])
    assert (estimate.rank, estimate.bits) == (1, tree.bits)


def test_a_blank_may_be_any_word_of_the_vocabulary() -> None:
    tokenizer = ten_thousand_words()
    words = [word for word in tokenizer.vocabulary if word.startswith("word")]
    tree = SecretTree(model(), SecretFormat("my {a} is {b}", a=words, b=words), tokenizer)
    assert tree.size == len(words) ** 2
    assert len(tree.root()) == len(words)
    costs = score(tree, ["my word7 is word9974", "my word7 is word12"]).costs
    free = len(tree.spelling.root)
    expected = [
        oracle.cost(model(), tokenizer.encode(text), free) for text in ("my word7 is word9974", "my word7 is word12")
    ]
    np.testing.assert_allclose(costs, expected, atol=1e-9)


def test_words_that_begin_other_words_are_different_tokens() -> None:
    tokenizer = WordTokenizer.from_text("say twenty twenty-two two now")
    format = SecretFormat("say {n} {n} now", n=["two", "twenty", "twenty-two"])
    tree = SecretTree(Recurrent(tokenizer.vocab_size, width=4), format, tokenizer)
    assert tree.spelling.exact
    assert len(tree.paths(oracle.all_texts(format))) == 9


def test_a_number_that_is_no_word_of_the_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError, match="word 'ten'"):
        SecretTree(model(), SecretFormat("my number is {d}", d=[*DIGITS, "ten"]), ten_thousand_words())
