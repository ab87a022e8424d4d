"""What texts share: n-grams, stretches and near copies, each against a slow and obvious version."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_exposure.synthetic.text._near import texts_with_near_copies
from lightning_exposure.synthetic.text._ngrams import NgramModel
from lightning_exposure.synthetic.text._spans import shared_spans

TEXTS = st.lists(st.text("ab c\U0001f600", max_size=12), min_size=1, max_size=5)


# --- n-grams --------------------------------------------------------------------------------------------------


def chance(texts: list[str], letters: int, before: str, character: str, discount: float) -> float:
    """The formula of absolute discounting, by looking at every place of every text."""
    shorter = 1.0 / letters if not before else chance(texts, letters, before[1:], character, discount)
    followers = [
        text[place + len(before)]
        for text in texts
        for place in range(len(text) - len(before))
        if text.startswith(before, place)
    ]
    if not followers:
        return shorter if before else 1.0 / letters
    kept = max(0.0, followers.count(character) - discount)
    return (kept + discount * len(set(followers)) * shorter) / len(followers)


@settings(max_examples=40, deadline=None)
@given(
    TEXTS, st.text("ab c\U0001f600", min_size=1, max_size=8), st.integers(1, 5), st.sampled_from([0.1, 0.4, 0.75, 1.0])
)
def test_an_ngram_model_is_what_the_formula_says(texts: list[str], asked: str, order: int, discount: float) -> None:
    alphabet = set("".join([*texts, asked]))
    costs = NgramModel(texts, [asked], order=order, discount=discount).bits(asked)
    for place, character in enumerate(asked):
        before = asked[max(0, place - order + 1) : place]
        assert 2 ** -costs[place] == pytest.approx(chance(texts, len(alphabet), before, character, discount))


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.text("abc", max_size=6))
def test_the_chances_of_all_characters_are_one_together(texts: list[str], before: str) -> None:
    alphabet = sorted({*"".join(texts), *"abcd"})
    model = NgramModel(texts, alphabet, order=4)
    assert sum(2 ** -model.bits(before + character)[-1] for character in alphabet) == pytest.approx(1.0)


def test_all_orders_come_at_once_and_texts_apart() -> None:
    texts = ["abcabc", "cab"]
    model = NgramModel(texts, order=3)
    first, second = model.bits_by_order(["abc", "b"])
    assert first.shape == (3, 3)
    assert second.shape == (3, 1)
    for order in (1, 2, 3):
        np.testing.assert_allclose(first[order - 1], NgramModel(texts, order=order).bits("abc"))
    # "ca" stands in the texts, but nowhere from one into the next: there is no "cc".
    assert NgramModel(["c", "c"], "d", order=2).bits("cc")[1] == NgramModel(["c", "c"], "d", order=1).bits("c")[0]
    assert model.bits_by_order([]) == []
    # A word may count as one character.
    np.testing.assert_allclose(
        NgramModel([["tea", " ", "tea"]], order=2).bits(["tea", " "]), NgramModel(["a a"], order=2).bits("a ")
    )


# --- stretches ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 9))
def test_shared_stretches_are_those_of_sets(texts: list[str], others: list[str], span: int) -> None:
    def cut(text: str) -> set[str]:
        return {text[place : place + span] for place in range(len(text) - span + 1)}

    there = set().union(*map(cut, others))
    own = set().union(*map(cut, texts))
    found = shared_spans(texts, others, span)
    assert (found.spans, found.found) == (len(own), len(own & there))
    assert found.long_enough.tolist() == [len(text) >= span for text in texts]
    assert found.touched.tolist() == [bool(cut(text) & there) for text in texts]


# --- near copies ----------------------------------------------------------------------------------------------


def distance(one: str, other: str) -> int:
    """Levenshtein's, row by row."""
    row = list(range(len(other) + 1))
    for place, character in enumerate(one, 1):
        new = [place]
        for at, letter in enumerate(other, 1):
            new.append(min(row[at] + 1, new[-1] + 1, row[at - 1] + (character != letter)))
        row = new
    return row[-1]


def has_copy(text: str, secret: str, edits: int) -> bool:
    parts = (text[begin:end] for begin in range(len(text) + 1) for end in range(begin, len(text) + 1))
    return any(distance(part, secret) <= edits for part in parts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("012", max_size=14), min_size=1, max_size=5),
    st.lists(st.text("012", min_size=1, max_size=12), min_size=1, max_size=3),
    st.integers(0, 3),
)
def test_near_copies_are_those_of_levenshtein(texts: list[str], secrets: list[str], edits: int) -> None:
    expected = [sum(has_copy(text, secret, min(edits, len(secret) // 4)) for text in texts) for secret in secrets]
    assert texts_with_near_copies(texts, secrets, edits) == expected


def test_a_copy_does_not_go_from_one_text_into_the_next() -> None:
    assert texts_with_near_copies(["xx1234", "5678xx"], ["12345678"], edits=2) == [0]
    assert texts_with_near_copies(["xx12345", "678xx", "x1234567", "12345678"], ["12345678"], edits=1) == [2]
