"""Confidence intervals against known values and against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lightning_exposure.exposure.intervals import (
    clustered_interval,
    proportion_interval,
    weighted_count_interval,
)


def test_with_equal_weights_it_is_the_exact_poisson_interval() -> None:
    low, high = weighted_count_interval(30.0, 90.0, 3.0, 0.95)  # ten finds that stand for three each
    assert low == pytest.approx(3 * stats.chi2.ppf(0.025, 20) / 2)
    assert high == pytest.approx(3 * stats.chi2.ppf(0.975, 22) / 2)


def test_nothing_found_still_says_how_much_may_have_been_missed() -> None:
    low, high = weighted_count_interval(0.0, 0.0, 5.0, 0.95)
    assert low == 0.0
    assert high == pytest.approx(5 * -np.log(0.025))


@pytest.mark.parametrize("chances", [[0.05] * 20, [0.9] * 5 + [0.02] * 50, [0.5] * 200])
def test_coverage_over_simulated_samples(chances: list[float]) -> None:
    generator = np.random.default_rng(0)
    inclusion = np.array(chances)
    covered = 0
    for _ in range(400):
        found = inclusion[generator.random(len(inclusion)) < inclusion]
        low, high = weighted_count_interval(
            float((1 / found).sum()),
            float(((1 - found) / found**2).sum()),
            float(np.sqrt(1 - inclusion.min()) / inclusion.min()),
            0.95,
        )
        covered += low <= len(inclusion) <= high
    assert covered >= 370  # 95% less what 400 trials can be off


def test_proportions_are_clopper_pearson() -> None:
    assert proportion_interval(3, 10, 0.95) == pytest.approx((0.0667, 0.6525), abs=1e-4)


def test_clusters_that_vary_as_independent_trials_do_are_almost_that_many_trials() -> None:
    draws = np.random.default_rng(0)
    shares = draws.binomial(20, 0.3, size=40) / 20
    low, high = clustered_interval(shares, 20, 0.95)
    single = proportion_interval(float(shares.sum() * 20), 800, 0.95)
    assert high - low == pytest.approx(single[1] - single[0], rel=0.35)


def test_clusters_whose_members_are_all_alike_are_one_trial_each() -> None:
    shares = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    low, high = clustered_interval(shares, 50, 0.95)
    single = proportion_interval(3, 10, 0.95)
    assert low <= single[0] + 0.02
    assert high >= single[1] - 0.02


def test_an_interval_of_clusters_holds_the_truth_as_often_as_it_says() -> None:
    draws = np.random.default_rng(1)
    for size, alike in ((1, 0.0), (5, 0.0), (5, 0.99), (20, 0.3)):
        covered = 0
        for _ in range(300):
            # The chance of a cluster is drawn around 0.2; `alike` says how far.
            spread = max(alike, 1e-3)
            chances = draws.beta(0.2 * (1 - spread) / spread, 0.8 * (1 - spread) / spread, size=8)
            low, high = clustered_interval(draws.binomial(size, chances) / size, size, 0.95)
            covered += low <= 0.2 <= high
        assert covered >= 300 * 0.92, (size, alike)


def test_a_fraction_of_a_hit_is_less_than_a_hit() -> None:
    lows, highs = zip(*(proportion_interval(hits, 3, 0.95) for hits in (0, 0.25, 0.5, 1)), strict=True)
    assert list(lows) == sorted(set(lows))
    assert list(highs) == sorted(set(highs))
