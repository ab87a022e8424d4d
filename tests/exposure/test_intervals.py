"""Confidence intervals against known values and against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lightning_exposure.exposure.intervals import proportion_interval, weighted_count_interval


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
