"""The tests of noise and batches as pure functions: they see what is wrong, and hold as often as they say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.poisson import draw
from lightning_exposure.privacy.steps.proof import (
    BATCH_TESTS,
    NOISE_TESTS,
    BatchTests,
    Coordinates,
    ErrorBudget,
    NoiseTests,
)
from lightning_exposure.privacy.steps.proof._accountant import check_accounting
from lightning_exposure.privacy.steps.proof._batches import check_draw
from lightning_exposure.privacy.steps.proof._error import (
    NormalTotals,
    as_normal,
    is_time_to_look,
    of_counts,
    of_squares,
)

Change = Callable[[np.ndarray, int], np.ndarray]


def noise_tests(sizes: list[int], error: float = 1e-6, seed: int = 0) -> NoiseTests:
    edges = np.cumsum([0, *sizes])
    slices = [slice(int(a), int(b)) for a, b in pairwise(edges)]
    return NoiseTests(slices, ErrorBudget(NOISE_TESTS, error), np.random.default_rng(seed))


def steps_until_refused(change: Change, sizes: list[int], steps: int = 60, seed: int = 0) -> int | None:
    """After how many steps the noise that `change` makes of good noise is refused."""
    luck, tests = np.random.default_rng(seed), noise_tests(sizes)
    for step in range(steps):
        noise = change(luck.standard_normal(sum(sizes)), step)
        sums = torch.from_numpy(luck.standard_normal(sum(sizes)))
        try:
            tests.add(sums, sums + 0.3 * torch.from_numpy(noise), 0.3)
        except FitError:
            return step + 1
    return None


def kept(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count)


@pytest.mark.parametrize(
    ("change", "sizes", "within"),
    [
        (lambda z, step: 0 * z, [17], 1),
        (lambda z, step: 0.5 * z, [16, 1], 8),
        (lambda z, step: 0.7 * z, [16, 1], 24),
        (lambda z, step: 1.5 * z, [16, 1], 24),
        (lambda z, step: 0.95 * z, [5000], 3),
        (lambda z, step: 0.98 * z, [5000], 24),
        (lambda z, step: np.ones_like(z), [17], 3),
        (lambda z, step: np.sign(z), [17], 3),
        (lambda z, step: np.sign(z[0]) * np.ones_like(z), [17], 6),
        (lambda z, step: 3**0.5 * (2 * stats.norm.cdf(z) - 1), [17], 32),
        (lambda z, step: stats.t.ppf(stats.norm.cdf(z), 3) / 3**0.5, [5000], 2),
        (lambda z, step: z * (np.arange(len(z)) % 2), [17], 8),
        (lambda z, step: z * 2**0.5 * (np.arange(len(z)) % 2), [17], 8),
        (lambda z, step: kept(0, len(z)), [17], 6),
        (lambda z, step: (-1) ** step * kept(step // 2, len(z)), [17], 8),
        (lambda z, step: kept(step % 3, len(z)), [17], 12),
        (lambda z, step: z * (step < 3), [17], 4),
        (lambda z, step: np.tile(z[:20], 2), [20, 20], 4),
        (lambda z, step: np.concatenate([z[:30], 0.5 * z[30:]]), [30, 10], 16),
        (lambda z, step: (z + z[::-1]) / 2**0.5, [40], 48),
    ],
)
def test_what_is_no_noise_is_refused(change: Change, sizes: list[int], within: int) -> None:
    found = steps_until_refused(change, sizes)
    assert found is not None
    assert found <= within


def test_noise_passes_for_as_long_as_one_likes() -> None:
    for seed in range(20):
        assert steps_until_refused(lambda z, step: z, [16, 1, 40], steps=100, seed=seed) is None


def test_false_alarms_are_as_rare_as_they_are_said_to_be() -> None:
    luck = np.random.default_rng(0)
    alarms = 0
    for run in range(300):
        tests = noise_tests([9, 8], error=0.2, seed=run)
        try:
            for _ in range(12):
                noise = torch.from_numpy(luck.standard_normal(17))
                tests.add(torch.zeros(17, dtype=torch.float64), noise, 1.0)
        except FitError:
            alarms += 1
    # At most a fifth of them, but for luck; and not hardly any, or the tests would see little.
    assert 0.02 * 300 < alarms < 0.28 * 300


def test_noise_below_the_precision_of_the_numbers_is_not_held_against_a_step() -> None:
    tests = noise_tests([50])
    sums = torch.full((50,), 1e3, dtype=torch.float64)
    for _ in range(30):
        tests.add(sums, sums, 1e-6)


# ---- batches ---------------------------------------------------------------------------------------


def batches_until_refused(
    change: Callable[[list[int], int], list[int]], records: int = 200, rate: float = 0.1
) -> int | None:
    generator = torch.Generator().manual_seed(0)
    tests = BatchTests(records, ErrorBudget(BATCH_TESTS), np.random.default_rng(0))
    for step in range(100):
        try:
            tests.add(change(draw(records, rate, generator), step), rate)
        except FitError:
            return step + 1
    return None


FIXED = torch.Generator().manual_seed(1)


@pytest.mark.parametrize(
    ("change", "within"),
    [
        (lambda batch, step: torch.randperm(200, generator=FIXED)[:20].tolist(), 16),
        (lambda batch, step: list(range(20)), 3),
        (lambda batch, step: sorted({7, *batch}), 16),
        (lambda batch, step: sorted({*batch, *draw(200, 0.03, FIXED)}), 64),
        (lambda batch, step: sorted({*batch, *draw(200, 0.1, FIXED)}), 8),
        (lambda batch, step: [number for number in batch if number != 3], 100),
        (lambda batch, step: [number for number in batch if number % 2], 8),
        (lambda batch, step: list(range(20 * (step % 10), 20 * (step % 10) + 20)), 16),
    ],
)
def test_what_is_no_poisson_sampling_is_refused(change: Callable[[list[int], int], list[int]], within: int) -> None:
    found = batches_until_refused(change)
    if within == 100:  # never in: 200 * 0.9^100 is far from impossible
        assert found is None
    else:
        assert found is not None
        assert found <= within


@pytest.mark.parametrize(("records", "rate"), [(200, 0.1), (10, 0.5), (5, 0.01), (3, 1.0)])
def test_poisson_sampling_passes(records: int, rate: float) -> None:
    assert batches_until_refused(lambda batch, step: batch, records, rate) is None


def test_a_record_is_in_a_batch_once() -> None:
    with pytest.raises(FitError, match="a record is in the same batch more than once"):
        BatchTests(5, ErrorBudget(BATCH_TESTS), np.random.default_rng(0)).add([1, 1], 0.5)


def test_the_coins_are_tossed_again() -> None:
    generator = torch.Generator().manual_seed(4)
    state = generator.get_state()
    batch = draw(50, 0.3, generator)
    check_draw(batch, state, records=50, sample_rate=0.3)
    for other in (batch[:-1], [*batch[:-1], 49 - batch[-1]], []):
        with pytest.raises(FitError, match="the coins of the private generator"):
            check_draw(other, state, records=50, sample_rate=0.3)


def test_the_accountant_has_what_was_done() -> None:
    check_accounting([(1.0, 0.1, 2)], [(1.0, 0.1, 2), (2.0, 0.1, 3)], steps=3, noise_multiplier=2.0, sample_rate=0.1)
    with pytest.raises(FitError, match=r"was told 0 steps with noise_multiplier=2 and sample_rate=0\.1; the optimizer"):
        check_accounting([], [(2.0, 0.05, 1)], steps=1, noise_multiplier=2.0, sample_rate=0.1)
    with pytest.raises(FitError, match=r"told -2 steps with noise_multiplier=1 .*, which nobody has made"):
        check_accounting([(1.0, 0.1, 2)], [(2.0, 0.1, 1)], steps=1, noise_multiplier=2.0, sample_rate=0.1)


# ---- numbers ---------------------------------------------------------------------------------------


def test_counts_become_normal_numbers() -> None:
    luck = np.random.default_rng(0)
    counts = luck.binomial(7, 0.2, 4000)
    values = [as_normal(int(count), 7, 0.2, luck.random()) for count in counts]
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert as_normal(7, 7, 1e-12, 0.5) == pytest.approx(-stats.norm.ppf(0.5e-84), rel=1e-3)


def test_probabilities_are_those_of_the_slow_way() -> None:
    assert of_squares(30.0, 10) == pytest.approx(2 * stats.chi2.sf(30, 10))
    assert of_counts(np.array([3]), 10, np.array([0.7])) == pytest.approx(2 * stats.binom.cdf(3, 10, 0.7))
    totals = NormalTotals()
    for value in (3.0, -3.0):
        totals.add(value)
    assert totals.probability() == pytest.approx(2 * of_squares(18.0, 2))


def test_shares_add_up_to_the_error() -> None:
    budget = ErrorBudget({"a": 1, "b": 3}, error=0.4)
    assert sum(budget.next_share("a") for _ in range(10_000)) == pytest.approx(0.1, rel=1e-3)
    assert sum(is_time_to_look(steps) for steps in range(1, 2**20)) < 45


def test_coordinates_are_distinct_and_the_same_every_time() -> None:
    parameters = {"big": torch.arange(100_000.0).view(100, 1000), "small": torch.arange(5.0)}
    chosen = Coordinates(parameters, torch.Generator().manual_seed(0), limit=1000)
    numbers = chosen.of(parameters)
    big = numbers[chosen.slices(parameters)["big"]]
    assert len(big) == len(big.unique()) == chosen.sizes["big"] < 1100
    assert big[:32].tolist() == list(range(32))
    assert int(big.max()) < 100_000
    assert numbers[chosen.slices(parameters)["small"]].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(numbers, chosen.of(parameters))
    # A view of the memory in another order has the same numbers in the same places.
    assert torch.equal(chosen.of_one("big", parameters["big"].t().contiguous().t()), big.float())
