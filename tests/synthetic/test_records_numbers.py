"""Records in any unit, records in two places, and classifiers of others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from lightning_exposure.errors import ArgumentError, DataError, ExposureError
from lightning_exposure.synthetic import AttackResult, GeneratedDataAttack, SmallClassifier, UtilityMatrix


def few_steps(seed: int) -> SmallClassifier:
    return SmallClassifier(seed, steps=60)


def attacked(change: Callable[[np.ndarray], np.ndarray], classifier: Any = few_steps, **settings: Any) -> AttackResult:
    """A generator that gives away its members, with all records in another unit."""
    members, others = np.random.default_rng(0).random((2, 80, 12))
    attack = GeneratedDataAttack(classifier, classifiers=1, **settings)
    return attack.measure(change(members), members=change(members), held_out=change(others))


# ---- units -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["uniform", "normal"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: 1e-6 * x,
        lambda x: 1e-30 * x,
        lambda x: 1e30 * x,
        lambda x: 1e39 * x,
        lambda x: 1e200 * x,
        lambda x: x + 1e5,
        lambda x: x + 1e8,
        lambda x: x * np.logspace(-6, 9, 12) + np.logspace(3, 0, 12),
    ],
    ids=["millionths", "tiny", "large", "beyond single", "huge", "far", "far off", "each its own"],
)
def test_a_leak_does_not_depend_on_the_unit(change: Callable[[np.ndarray], np.ndarray], noise: str) -> None:
    plain, other = attacked(lambda x: x, noise=noise), attacked(change, noise=noise)
    assert plain.leak.low > 0.1
    assert other.leak.value == pytest.approx(plain.leak.value, abs=0.06)
    assert other.members.value == pytest.approx(plain.members.value, abs=0.06)


def test_moments_in_whole_seconds_are_not_merged() -> None:
    """In single precision, all of them would be one of two moments."""
    result = attacked(lambda x: (1_700_000_000 + 1000 * x).astype(np.int64))
    assert result.leak.low > 0.1


def test_what_never_varies_tells_nothing_and_is_no_trouble() -> None:
    result = attacked(lambda x: np.concatenate([x, np.zeros((len(x), 1)), np.full((len(x), 2), 0.1)], axis=1))
    assert result.leak.low > 0.1


def test_accuracies_do_not_depend_on_the_unit() -> None:
    luck = np.random.default_rng(0)

    def pair(count: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
        labels = luck.integers(2, size=count)
        return 1e9 + scale * (labels[:, None] + 0.1 * luck.standard_normal((count, 3))), labels

    for scale in (1.0, 1e-3):
        found = UtilityMatrix(few_steps, seeds=(0, 1)).measure(
            pair(50, scale), pair(50, scale), private_test=pair(50, scale), generated_test=pair(50, scale)
        )
        assert min(found.p1 + found.p2 + found.p3 + found.p4) > 0.9


def forest(seed: int) -> RandomForestClassifier:
    return RandomForestClassifier(n_estimators=20, random_state=seed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x + 1e8, "have 12 features that single precision cannot tell apart, the first at place 0"),
        (lambda x: (1_700_000_000 + 100 * x).astype(np.int64), "have 12 features that single precision cannot tell"),
        (
            lambda x: np.c_[x, 1e7 + x[:, 0]],
            "have 1 feature that single precision cannot tell apart, the first at place 12",
        ),
        (lambda x: 1e39 * x, "numbers of up to 1e.39; expected none beyond single precision"),
    ],
)
def test_other_classifiers_are_not_given_what_they_would_merge(change: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        attacked(change, forest)
    assert (
        attacked(lambda x: change(x) - change(x).mean(0) if change(x).max() < 1e38 else x, forest).members.value > 0.5
    )


def test_whole_numbers_that_cannot_be_told_apart_are_refused() -> None:
    numbers = np.arange(40, dtype=np.int64).reshape(20, 2) + 2**60
    with pytest.raises(DataError, match=r"^generated has whole numbers of up to 1.15e\+18; expected none"):
        GeneratedDataAttack().measure(numbers, members=numbers, held_out=numbers)


# ---- records in two places -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [1, 5, 10])
def test_a_single_record_in_two_places_is_refused_if_none_is_equal_by_chance(shared: int) -> None:
    generated, members, others = np.random.default_rng(0).random((3, 500, 4))
    others[:shared] = members[:shared]
    with pytest.raises(DataError, match=f"held_out has {shared} of its 500 records in common with members, of which 0"):
        GeneratedDataAttack(few_steps).measure(generated, members=members, held_out=others)
    labels = np.arange(500) % 2
    with pytest.raises(DataError, match=f"private_test has {shared} of its 500 records in common with private"):
        UtilityMatrix(few_steps).measure(
            (members, labels), (generated, labels), private_test=(others, labels), generated_test=(generated, labels)
        )


def test_a_record_with_a_negative_zero_is_the_same_record() -> None:
    members, others = np.random.default_rng(0).random((2, 30, 2))
    members[0], others[0] = [0.0, 1.0], [-0.0, 1.0]
    with pytest.raises(DataError, match="held_out has 1 of its 30 records in common with members"):
        GeneratedDataAttack(few_steps).measure(members, members=members, held_out=others)


def test_private_records_of_few_values_may_be_tested_on() -> None:
    luck = np.random.default_rng(0)
    pairs = [(luck.integers(2, size=(200, 4)), luck.integers(2, size=200)) for _ in range(4)]
    found = UtilityMatrix(few_steps, seeds=(0, 1)).measure(
        pairs[0], pairs[1], private_test=pairs[2], generated_test=pairs[3]
    )
    assert 0.3 < np.mean(found.p1) < 0.7


# ---- classifiers of others -----------------------------------------------------------------------------------------


def test_images_for_a_classifier_of_rows_are_refused_with_what_to_do() -> None:
    def images(records: np.ndarray) -> np.ndarray:
        return records.reshape(-1, 1, 3, 4)

    shape = r"classifier cannot learn from records of the shape \(1, 3, 4\) "
    with pytest.raises(DataError, match=rf"{shape}\(.*dim 4.*give records\.reshape\(len\(records\), -1\)"):
        attacked(images, forest)
    pair = (np.random.default_rng(0).random((20, 1, 3, 4)), np.arange(20) % 2)
    other = (pair[0] + 1, pair[1])
    with pytest.raises(DataError, match=shape):
        UtilityMatrix(forest, seeds=(0, 1)).measure(pair, pair, private_test=other, generated_test=pair)


@pytest.mark.parametrize(
    "wrong",
    [
        RandomForestClassifier,
        LogisticRegression,
        KNeighborsClassifier,
        GaussianNB,
        SVC,
        functools.partial(RandomForestClassifier, max_depth=3),
        lambda: RandomForestClassifier(),
        lambda seed, size: RandomForestClassifier(size, random_state=seed),
    ],
    ids=lambda each: getattr(each, "__name__", "partial"),
)
def test_what_takes_no_seed_is_refused(wrong: Any) -> None:
    """A class of scikit-learn would take the seed for a number of trees, or of neighbours."""
    for make in (GeneratedDataAttack, UtilityMatrix):
        with pytest.raises(ArgumentError, match=r"^classifier is .*; expected a function that makes .* of a seed"):
            make(wrong)


@pytest.mark.parametrize(
    "right",
    [
        lambda seed: RandomForestClassifier(random_state=seed),
        lambda number=0: RandomForestClassifier(random_state=number),
        lambda *seeds: RandomForestClassifier(random_state=seeds[0]),
        functools.partial(SmallClassifier, steps=3),
        SmallClassifier,
    ],
)
def test_what_takes_a_seed_is_not(right: Any) -> None:
    GeneratedDataAttack(right)
    UtilityMatrix(right)


@pytest.mark.parametrize("wrong", [[[1], [2]], [{}, {}], [None, None], 5, "01", [3]])
def test_seeds_that_are_none(wrong: Any) -> None:
    with pytest.raises(ExposureError, match=r"^seeds(\[0\])? is .*; expected "):
        UtilityMatrix(seeds=wrong)
