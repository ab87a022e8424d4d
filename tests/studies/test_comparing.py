"""Comparisons of settings: seed by seed, and corrected for how many there are."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from scipy import stats

from lightning_exposure.studies.comparing import above_chance, correlated, holm, paired, sentences
from lightning_exposure.studies.study import Row

PLAIN, NOISY = [16.6, 3.0, 12.5, 9.1], [2.0, 2.5, 1.1, 4.0]


def table(plain: list[float], noisy: list[float]) -> list[Row]:
    # In an order that is not that of the seeds: rows are told apart by what they say.
    rows: list[Row] = [{"way": "plain", "seed": seed, "exposure_bits": bits} for seed, bits in enumerate(plain)]
    return [
        *reversed(rows),
        *({"way": "noise", "seed": seed, "exposure_bits": bits} for seed, bits in enumerate(noisy)),
    ]


def test_what_is_compared_are_the_trainings_of_one_secret() -> None:
    found = paired("noise", table(PLAIN, NOISY), "exposure_bits", {"way": "noise"}, {"way": "plain"})
    expected = stats.ttest_rel(NOISY, PLAIN)
    assert found.pvalue == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    mean = np.mean(NOISY) - np.mean(PLAIN)
    assert found.found == f"noise: {mean:+.2f} [{low:+.2f}, {high:+.2f}] bits"
    assert found.test == "paired t, 4 pairs"


def test_a_seed_with_several_rows_counts_once_and_one_without_a_partner_not_at_all() -> None:
    rows = [*table(PLAIN, NOISY), {"way": "noise", "seed": 0, "exposure_bits": 4.0}]
    rows += [{"way": "noise", "seed": 9, "exposure_bits": 99.0}]
    found = paired("noise", rows, "exposure_bits", lambda row: row["way"] == "noise", {"way": "plain"})
    assert found.pvalue == pytest.approx(stats.ttest_rel([3.0, *NOISY[1:]], PLAIN).pvalue)
    assert paired("noise", rows, "exposure_bits", {"way": "neither"}, {"way": "plain"}).pvalue is None


def test_where_nothing_varies_there_is_no_test() -> None:
    found = paired("noise", table([5.0, 6.0], [5.0, 6.0]), "exposure_bits", {"way": "noise"}, {"way": "plain"})
    assert (found.found, found.test, found.pvalue) == ("noise: +0.00 bits", "the same in all of them, 2 pairs", None)
    (alone,) = sentences([paired("n", table([5.0], [6.0]), "exposure_bits", {"way": "noise"}, {"way": "plain"})])
    assert alone == "n: +1.00 bits (the same in all of them, 1 pair)"
    same: list[Row] = [{"units": units, "seed": 0, "exposure_bits": 3.0} for units in (1, 2, 3)]
    assert correlated("units", same, "units", "exposure_bits").pvalue is None


def test_a_correlation_is_that_within_the_secrets_of_a_seed() -> None:
    # Within a seed exposure falls with the units; between the seeds it happens to rise with them.
    rows: list[Row] = [
        {"seed": seed, "units": 10 * seed + step, "exposure_bits": 5.0 * seed - step + 0.1 * (step == 2)}
        for seed in range(3)
        for step in range(6)
    ]
    found = correlated("units", rows, "units", "exposure_bits")
    assert found.found == "units: rank correlation -1.00"
    assert (found.pvalue or 1) < 0.001
    (alone,) = [stats.spearmanr([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]).statistic]
    few: list[Row] = [{"seed": 0, "x": x, "y": y} for x, y in zip([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], strict=True)]
    exact = [stats.spearmanr([1, 2, 3, 4, 5], order).statistic for order in itertools.permutations([2, 1, 4, 3, 5])]
    expected = np.mean(np.abs(exact) >= alone - 1e-9)
    again = correlated("x", few, "x", "y")
    assert again.found == f"x: rank correlation {alone:+.2f}"
    assert again.pvalue == pytest.approx(expected, abs=0.02)


def test_many_settings_of_one_secret_are_not_many_secrets() -> None:
    draws, alarms = np.random.default_rng(0), 0
    for _ in range(60):
        # What a secret is like by itself differs from seed to seed; the setting does nothing.
        rows: list[Row] = [
            {"seed": seed, "x": float(x), "y": float(base + draws.normal())}
            for seed, base in enumerate(draws.normal(scale=5, size=3))
            for x in range(8)
        ]
        alarms += (correlated("", rows, "x", "y").pvalue or 0) < 0.05
    assert alarms <= stats.binom.ppf(0.999, 60, 0.05)


def test_exact_ranks_of_secrets_that_were_never_seen_are_above_chance_as_rarely_as_stated() -> None:
    draws = random.Random(0)
    alarms = 0
    for _ in range(400):
        rows: list[Row] = [{"exposure_bits": math.log2(1000 / draws.randint(1, 1000))} for _ in range(5)]
        alarms += (above_chance("", rows).pvalue or 0) < 0.05
    assert alarms <= stats.binom.ppf(0.999, 400, 0.05)
    assert (above_chance("", [{"exposure_bits": 10.0}] * 2).pvalue or 1) < 1e-4


def test_holms_correction_against_its_definition() -> None:
    draws = random.Random(1)
    for _ in range(50):
        pvalues = [draws.random() ** 3 for _ in range(draws.randint(1, 6))]
        corrected = holm(pvalues)
        for level in (0.01, 0.05, 0.2, 0.7):
            # Step down: reject the smallest as long as each is small enough for what is left.
            order, rejected = sorted(range(len(pvalues)), key=pvalues.__getitem__), set()
            for place, index in enumerate(order):
                if pvalues[index] > level / (len(pvalues) - place):
                    break
                rejected.add(index)
            assert {index for index, p in enumerate(corrected) if p <= level} == rejected
    assert all(holm(list(order)) for order in itertools.permutations([0.5, 0.1, 0.1]))
