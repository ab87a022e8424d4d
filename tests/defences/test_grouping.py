"""Copies fall into one group: against a slow and obvious comparison of all pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_exposure.defences.sanitizing import group_copies, letters_and_digits
from lightning_exposure.defences.sanitizing._grouping import shared_rare
from lightning_exposure.defences.sanitizing._splitting import (
    count_of_share,
    losses_by_part,
    most_suspicious_first,
    split_groups,
)

TEXTS = st.lists(st.text("ab12 -", max_size=8), max_size=9)


def grams(text: str, n: int, numbers: bool = False) -> set[str]:
    plain = "".join(map(chr, letters_and_digits(text)))
    found = {plain[start : start + n] for start in range(len(plain) - n + 1)}
    return {gram for gram in found if not numbers or 2 * sum(map(str.isdigit, gram)) >= n}


def rare_grams(texts: list[str], n: int, rare: int, numbers: bool = False) -> list[set[str]]:
    each = [grams(text, n, numbers) for text in texts]
    return [{gram for gram in own if 2 <= sum(gram in other for other in each) <= rare} for own in each]


def brute_force(texts: list[str], n: int, rare: int) -> list[frozenset[int]]:
    """Groups without a limit: any two samples that are equal or share something, again and again until none is left."""
    plain = [tuple(letters_and_digits(text)) for text in texts]
    short, long = rare_grams(texts, n, rare, numbers=True), rare_grams(texts, 2 * n, rare)
    groups = [{number} for number in range(len(texts))]
    changed = True
    while changed:
        changed = False
        for one, other in combinations(groups, 2):
            if any(
                (plain[i] and plain[i] == plain[j]) or short[i] & short[j] or long[i] & long[j]
                for i in one
                for j in other
            ):
                groups = [group for group in groups if group not in (one, other)] + [one | other]
                changed = True
                break
    return sorted((frozenset(group) for group in groups), key=min)


def as_sets(numbers: np.ndarray) -> list[frozenset[int]]:
    return [frozenset(np.flatnonzero(numbers == group).tolist()) for group in range(numbers.max(initial=-1) + 1)]


@given(TEXTS, st.integers(1, 3))
def test_without_a_limit_the_groups_are_those_of_comparing_all_pairs(texts: list[str], n: int) -> None:
    found = group_copies([letters_and_digits(text) for text in texts], n=n, largest=99)
    assert as_sets(found) == brute_force(texts, n, rare=99)


@given(TEXTS, st.integers(1, 3), st.integers(1, 4))
def test_no_group_is_larger_than_the_limit_and_none_holds_strangers(texts: list[str], n: int, largest: int) -> None:
    samples = [letters_and_digits(text) for text in texts]
    found = group_copies(samples, n=n, largest=largest)
    unlimited = brute_force(texts, n, rare=99)
    for group in as_sets(found):
        assert len(group) <= largest
        assert any(group <= whole for whole in unlimited)
    assert (found == group_copies(samples, n=n, largest=largest)).all()


@given(TEXTS, st.integers(1, 3), st.integers(2, 4), st.booleans())
def test_links_are_the_rare_ngrams(texts: list[str], n: int, rare: int, numbers: bool) -> None:
    links = shared_rare([letters_and_digits(text) for text in texts], n=n, rare=rare, numbers=numbers)
    each = rare_grams(texts, n, rare, numbers)
    assert {number for pair in links.pairs.tolist() for number in pair} == {i for i, own in enumerate(each) if own}
    for (first, second), strength in zip(links.pairs.tolist(), links.strengths.tolist(), strict=True):
        assert 0 < strength <= len(each[first] & each[second])
    assert (np.diff(links.strengths) <= 0).all()


def test_spellings_of_one_number_are_copies_and_a_long_word_is_not_enough() -> None:
    texts = [
        "My SSN is 281-26-5017.",
        "ssn: 281 26 5017",
        "281265017 (his number)".translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)}),  # full width
        "her number 281-26-5018, and was his",
        "the extraordinary success of it",
        "extraordinary weather",
    ]
    groups = group_copies([letters_and_digits(text) for text in texts], n=8, largest=16)
    assert groups.tolist() == [0, 0, 0, 0, 1, 2]  # the fourth shares eight digits of nine
    assert group_copies([letters_and_digits(text) for text in texts], n=9, largest=16).tolist() == [0, 0, 0, 1, 2, 3]


def test_numbers_come_first_where_the_limit_is_tight() -> None:
    sentence = "a sentence that stands in three places of the text"
    texts = [f"{sentence} 281-26-5017", sentence, f"{sentence}, too", "of Ann: 281 26 5017"]
    samples = [letters_and_digits(text) for text in texts]
    assert group_copies(samples, n=8, largest=3).tolist() == [0, 0, 1, 0]  # not the three that share a sentence


def test_what_a_full_group_leaves_behind_still_finds_its_own() -> None:
    assert group_copies([letters_and_digits("the same")] * 5, n=8, largest=2).tolist() == [0, 0, 1, 1, 2]


def test_token_ids_are_grouped_too() -> None:
    samples = [np.array(ids) for ids in ([1, 2, 3, 4], [9, 2, 3, 4, 7], [5, 6])]
    assert group_copies(samples, n=3, largest=3, digits=False).tolist() == [0, 0, 1]
    assert group_copies([], n=3, largest=3).tolist() == []


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(2, 4), st.integers(0, 9))
def test_no_group_is_divided_and_parts_are_even(numbers: list[int], folds: int, seed: int) -> None:
    groups = np.unique(numbers, return_inverse=True)[1]
    parts = split_groups(groups, folds, seed)
    for group in range(groups.max() + 1):
        assert len(set(parts[groups == group].tolist())) == 1
    sizes = np.bincount(parts, minlength=folds)
    assert sizes.max() - sizes.min() <= np.bincount(groups).max()
    assert (parts == split_groups(groups, folds, seed)).all()


def test_singles_are_divided_at_random_and_by_the_seed() -> None:
    together = sum(
        bool(parts[3] == parts[70]) for parts in (split_groups(np.arange(100), 2, seed) for seed in range(200))
    )
    assert 70 < together < 130  # 99.0 expected: five standard deviations are 35
    assert (split_groups(np.arange(100), 2, 0) != split_groups(np.arange(100), 2, 1)).any()


@settings(max_examples=20)
@given(st.integers(2, 5), st.integers(1, 8), st.integers(0, 99))
def test_losses_where_seen_and_where_not(folds: int, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    costs, parts = generator.normal(size=(folds, count)), generator.integers(folds, size=count)
    losses = losses_by_part(costs, parts)
    for sample in range(count):
        others = [costs[part, sample] for part in range(folds) if part != parts[sample]]
        assert losses.held_out[sample] == costs[parts[sample], sample]
        assert losses.seen[sample] == pytest.approx(np.mean(others))


def test_the_difference_has_a_sign() -> None:
    # Without one, the second, which a model that has seen it finds harder, would come first.
    assert most_suspicious_first(np.array([1.0, -5.0, 3.0, 3.0])).tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(("share", "count", "expected"), [(0.1, 1000, 100), (0.1, 30, 3), (0.01, 30, 1), (1, 7, 7)])
def test_a_share_is_rounded_up(share: float, count: int, expected: int) -> None:
    assert count_of_share(share, count) == expected
