"""Sampling: uniform, without replacement, in random order, from sets of any size."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_exposure.errors import ArgumentError, SecretError
from lightning_exposure.secrets import SecretFormat

PIN = SecretFormat("pin ##")


def is_uniform(drawn: Iterable[object], kinds: int) -> bool:
    """A chi-squared test of equal frequencies that a fair source fails once in a thousand."""
    counts = Counter(drawn)
    assert len(counts) <= kinds
    expected = sum(counts.values()) / kinds
    assert expected >= 20
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    statistic += (kinds - len(counts)) * expected
    freedom = kinds - 1
    # The critical value, after Wilson and Hilferty.
    return statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


def test_the_uniformity_test_notices_a_bias() -> None:
    fair = [number % 10 for number in range(1000)]
    assert is_uniform(fair, 10)
    assert not is_uniform(fair + [3] * 80, 10)
    assert not is_uniform([number % 9 for number in range(1000)], 10)


@given(st.integers(0, 100), st.integers(0, 2**70), st.sets(st.integers(0, 99)))
def test_samples_are_different_texts_and_never_excluded_ones(n: int, seed: int, excluded: set[int]) -> None:
    exclude = [PIN.render(number) for number in excluded]
    n = min(n, 100 - len(exclude))
    drawn = PIN.sample(n, seed, exclude)
    assert len(drawn) == len(set(drawn)) == n
    assert all(map(PIN.fits, drawn))
    assert not set(drawn) & set(exclude)


@given(st.integers(0, 2**32), st.sets(st.integers(0, 99)))
def test_sampling_everything_is_a_permutation(seed: int, excluded: set[int]) -> None:
    everything = {PIN.render(number) for number in range(100)}
    exclude = {PIN.render(number) for number in excluded}
    assert set(PIN.sample(100 - len(exclude), seed, exclude)) == everything - exclude


@pytest.mark.parametrize("excluded", [[], [0], [9], [0, 3, 8, 9]])
@pytest.mark.parametrize("place", [0, 1, 4, 5])
def test_every_place_of_a_sample_is_uniform(place: int, excluded: list[int]) -> None:
    format_ = SecretFormat("#")
    exclude = list(map(str, excluded))
    drawn = [format_.sample(6, seed, exclude)[place] for seed in range(4000)]
    assert is_uniform(drawn, 10 - len(excluded))


def test_pairs_and_orders_are_uniform() -> None:
    format_ = SecretFormat("{w}", w=list("abcd"))
    generator = random.Random(1)
    assert is_uniform((tuple(format_.sample(2, generator)) for _ in range(4000)), 12)
    assert is_uniform((tuple(format_.sample(4, generator)) for _ in range(4000)), 24)


@pytest.mark.parametrize("format_", [SecretFormat.ssn(), SecretFormat.credit_card(), SecretFormat("#" * 40)])
def test_every_blank_of_a_large_format_is_uniform(format_: SecretFormat) -> None:
    drawn = format_.sample(3000, seed=5)
    assert len(set(drawn)) == 3000
    columns = list(zip(*map(format_.fillings, drawn), strict=True))
    # With 9 to 40 columns, one in a thousand each, this seed has no unlucky one.
    assert all(is_uniform(column, 10) for column in columns)
    # Not sorted, not even partly: neighbours go up as often as down.
    rises = sum(before < after for before, after in pairwise(drawn))
    assert abs(rises - 1500) < 150


def test_seeds_and_generators() -> None:
    ssn = SecretFormat.ssn()
    assert ssn.sample(5, seed=0) == ssn.sample(5, seed=0) == ssn.sample(5, np.int64(0))  # type: ignore[arg-type]
    assert ssn.sample(5, seed=0) == ssn.sample(5, random.Random(0))
    assert ssn.sample(5, seed=0) != ssn.sample(5, seed=1)
    assert ssn.sample(5, np.random.default_rng(0)) == ssn.sample(5, np.random.default_rng(0))
    for generator in (random.Random(0), np.random.default_rng(0)):
        assert ssn.sample(5, generator) != ssn.sample(5, generator), "a generator moves on"


def test_global_random_state_is_never_touched() -> None:
    python_state, numpy_state = random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    PIN.sample(50, seed=3)
    assert random.getstate() == python_state
    assert (np.random.get_state()[1] == numpy_state).all()  # type: ignore[index]


def test_the_order_of_excluded_secrets_does_not_matter() -> None:
    exclude = PIN.sample(40, seed=1)
    assert PIN.sample(20, seed=2, exclude=exclude) == PIN.sample(20, seed=2, exclude=iter(exclude[::-1]))
    assert PIN.sample(0, seed=2) == []


def test_what_cannot_be_sampled() -> None:
    with pytest.raises(ArgumentError, match=r"n is 101; expected at most 100, as the format 'pin ##' has 100 secrets"):
        PIN.sample(101, seed=0)
    with pytest.raises(ArgumentError, match=r"n is 99; expected at most 98, .* which 2 are excluded\. Ask for fewer"):
        PIN.sample(99, seed=0, exclude=["pin 00", "pin 99", "pin 00"])
    with pytest.raises(ArgumentError, match="n is -1; expected an integer of at least 0"):
        PIN.sample(-1, seed=0)
    with pytest.raises(ArgumentError, match=r"n is 1.5, of type float; expected an integer"):
        PIN.sample(1.5, seed=0)  # type: ignore[arg-type]
    with pytest.raises(SecretError, match="position 4 is a lower-case letter"):
        PIN.sample(1, seed=0, exclude=["pin x0"])
    with pytest.raises(ArgumentError, match="exclude is 'pin 00', of type str; expected a list of secrets"):
        PIN.sample(1, seed=0, exclude="pin 00")
    for seed in (-1, "0", None, 0.5, True):
        with pytest.raises(ArgumentError, match=r"seed is .* numpy.random.Generator is accepted too"):
            PIN.sample(1, seed)  # type: ignore[arg-type]
