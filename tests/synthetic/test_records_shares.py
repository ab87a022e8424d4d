"""Shares, differences and means: what their intervals promise is counted over all outcomes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightning_exposure.errors import ExposureError
from lightning_exposure.synthetic.records._shares import (
    Estimate,
    mean_over_seeds,
    privacy_loss,
    share,
    share_difference,
)


@pytest.mark.parametrize(("trials", "others"), [(5, 5), (5, 40), (12, 12), (30, 30), (40, 7)])
def test_two_equal_shares_differ_as_seldom_as_stated(trials: int, others: int) -> None:
    """All outcomes are listed, with their probabilities: those whose interval leaves out 0 have at most the error."""
    outside = np.array(
        [
            [not (found := share_difference(a, trials, b, others)).low <= 0 <= found.high for b in range(others + 1)]
            for a in range(trials + 1)
        ]
    )
    for p in np.linspace(0.01, 0.99, 40):
        chances = np.outer(stats.binom.pmf(range(trials + 1), trials, p), stats.binom.pmf(range(others + 1), others, p))
        assert chances[outside].sum() <= 0.05


@pytest.mark.parametrize(("p", "q"), [(0.9, 0.5), (0.6, 0.4), (0.98, 0.9), (0.5, 0.9)])
def test_the_interval_holds_the_true_difference(p: float, q: float) -> None:
    n = 60
    holds = np.array(
        [
            [(found := share_difference(a, n, b, n)).low <= p - q <= found.high for b in range(n + 1)]
            for a in range(n + 1)
        ]
    )
    chances = np.outer(stats.binom.pmf(range(n + 1), n, p), stats.binom.pmf(range(n + 1), n, q))
    assert chances[holds].sum() >= 0.95


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.data())
def test_swapping_the_groups_turns_the_difference_round(one: int, other: int, data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, one)), data.draw(st.integers(0, other))
    there, back = share_difference(a, one, b, other), share_difference(b, other, a, one)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))
    assert -1 - 1e-12 <= there.low <= there.value <= there.high <= 1 + 1e-12


def test_a_share_has_the_exact_interval() -> None:
    found, expected = share(37, 50, 0.9), stats.binomtest(37, 50).proportion_ci(0.9)
    assert (found.low, found.value, found.high) == pytest.approx((expected.low, 0.74, expected.high))


def test_privacy_loss_is_none_for_a_coin_and_one_for_certainty() -> None:
    assert privacy_loss(Estimate(0.5, 0.0, 1.0)) == Estimate(0.0, -1.0, 1.0)


def test_a_mean_over_seeds_has_students_interval() -> None:
    values = [0.91, 0.93, 0.9, 0.95]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    found = mean_over_seeds(values, 0.9)
    assert (found.low, found.value, found.high) == pytest.approx((low, np.mean(values), high))


@pytest.mark.parametrize(
    "call",
    [
        lambda: share(3, 2),
        lambda: share(0, 0),
        lambda: share(-1, 2),
        lambda: share(1, 2, 95),
        lambda: mean_over_seeds([0.3]),
    ],
)
def test_what_is_no_share(call) -> None:
    with pytest.raises(ExposureError, match="expected"):
        call()
