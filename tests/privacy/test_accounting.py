"""Epsilon: beside exact values where there are any, beside Opacus, and beside published numbers."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier
from scipy.optimize import brentq
from scipy.stats import norm

from lightning_exposure.errors import ArgumentError
from lightning_exposure.privacy.steps.accounting import epsilon, noise_for, spent, steps_within, with_steps

DELTA = 1e-6


def gaussian_epsilon(noise: float, steps: int, delta: float = DELTA) -> float:
    """The exact epsilon of steps that take every record (Balle and Wang, 2018)."""
    mean = math.sqrt(steps) / noise

    def too_small(value: float) -> float:
        one, other = norm.logsf(value / mean - mean / 2), value + norm.logsf(value / mean + mean / 2)
        return float(one + np.log1p(-np.exp(min(0.0, other - one))) - math.log(delta))

    return float(brentq(too_small, 1e-9, 2 * (mean**2 / 2 + 10 * mean)))


def one_step_epsilon(noise: float, rate: float, delta: float = DELTA) -> float:
    """The exact epsilon of one step that takes a record with a probability."""

    def too_small(value: float) -> float:
        # Beyond this place a result is more than e^value times as likely with the record as without it.
        place = noise**2 * (value + math.log1p(-(1 - rate) * math.exp(-value)) - math.log(rate)) + 0.5
        with_it = np.logaddexp(
            math.log(rate) + norm.logsf((place - 1) / noise), math.log1p(-rate) + norm.logsf(place / noise)
        )
        without = value + norm.logsf(place / noise)
        return float(with_it + np.log1p(-np.exp(min(0.0, without - with_it))) - math.log(delta))

    low = 1e-9
    return float(brentq(too_small, low, 1 / noise**2 + 20 / noise)) if too_small(low) > 0 else 0.0


def of_opacus(mechanism: str, history: list[tuple[float, float, int]], delta: float = DELTA) -> float:
    accountant = create_accountant(mechanism)
    accountant.history = history
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))


# ---- beside exact values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "steps"), [(20.0, 1), (5.0, 100), (1.0, 1), (1.0, 60), (0.3, 1), (0.1, 1)])
def test_steps_that_take_every_record_have_an_exact_epsilon(noise: float, steps: int) -> None:
    exact = gaussian_epsilon(noise, steps)
    assert exact <= epsilon([(noise, 1.0, steps)], DELTA) <= 1.01 * exact + 0.002
    assert exact <= epsilon([(noise, 1.0, steps)], DELTA, "rdp") <= 1.15 * exact


@pytest.mark.parametrize("noise", [2.0, 1.0, 0.5, 0.1])
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3])
def test_one_step_has_an_exact_epsilon(noise: float, rate: float) -> None:
    exact = one_step_epsilon(noise, rate)
    # The precision is half a percent of the looser accountant's bound, which is far from tight for a single step.
    assert exact <= epsilon([(noise, rate, 1)], DELTA) <= 1.01 * exact + 0.02
    assert exact <= epsilon([(noise, rate, 1)], DELTA, "rdp")


@pytest.mark.parametrize("noise", [0.1, 0.05, 0.01, 0.001])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1), (0.01, 1000), (0.02, 10_000), (1.0, 100)])
def test_tiny_noise_gives_a_huge_epsilon_that_is_still_an_upper_bound(noise: float, rate: float, steps: int) -> None:
    """As in the paper's Table 7, where noise of 0.1 and less gives epsilons from 65 to a billion."""
    found = spent([(noise, rate, steps)], DELTA)
    assert math.isfinite(found.epsilon)
    exact = gaussian_epsilon(noise, steps) if rate == 1 else one_step_epsilon(noise, rate)
    assert exact <= found.epsilon
    # Every step at its worst would be no more than this.
    assert found.epsilon <= 1.2 * gaussian_epsilon(noise, steps)
    if noise <= 0.05 and steps > 1:
        assert found.accountant == "rdp"


def test_epsilon_is_not_too_small_where_numbers_overflow() -> None:
    """Opacus' own PRV accountant says 703 here: the exponential of larger losses is no number."""
    exact = one_step_epsilon(0.01, 0.001)
    assert 5000 < exact <= epsilon([(0.01, 0.001, 1)], DELTA) < 1.02 * exact


# ---- beside Opacus and published numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("history", [[(1.0, 0.01, 1000)], [(0.6, 0.05, 40)], [(1.0, 0.01, 500), (2.0, 0.02, 300)]])
def test_ordinary_settings_agree_with_opacus(history: list[tuple[float, float, int]]) -> None:
    assert epsilon(history, DELTA) == pytest.approx(of_opacus("prv", history), rel=0.01)
    ours, theirs = epsilon(history, DELTA, "rdp"), of_opacus("rdp", history)
    assert 0.98 * theirs < ours <= theirs + 1e-9
    assert epsilon(history, DELTA) < ours


def test_published_numbers() -> None:
    # Abadi et al. (2016): q = 0.01, sigma = 4, delta = 1e-5 and 10,000 steps give 1.26 by the moments accountant. The
    # step from moments to epsilon has become tighter since then.
    moments = epsilon([(4.0, 0.01, 10_000)], 1e-5, "rdp")
    assert 0.8 * 1.26 < moments <= 1.26
    assert 0.75 * 1.26 < epsilon([(4.0, 0.01, 10_000)], 1e-5) < moments
    # TensorFlow Privacy's tutorial: 15 epochs of 60,000 records in batches of 250 with noise 1.3 give 1.18.
    assert 0.75 * 1.18 < epsilon([(1.3, 250 / 60_000, 15 * 240)], 1e-5, "rdp") <= 1.18


# ---- histories ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_nothing_costs_nothing_and_no_noise_costs_everything(accountant: str) -> None:
    assert epsilon([], DELTA, accountant) == 0
    assert epsilon([(1.0, 0.1, 0), (1.0, 0.0, 5)], DELTA, accountant) == 0
    assert epsilon([(1.0, 0.1, 5), (0.0, 0.1, 1)], DELTA, accountant) == math.inf


def test_a_history_may_be_cut_anywhere() -> None:
    whole = [(1.0, 0.1, 30)]
    parts = [(1.0, 0.1, 10), (1.0, 0.1, 20)]
    assert epsilon(parts, DELTA, "rdp") == pytest.approx(epsilon(whole, DELTA, "rdp"))
    assert epsilon(parts, DELTA) == pytest.approx(epsilon(whole, DELTA), rel=1e-3)
    assert with_steps([(1.0, 0.1, 10)], 1.0, 0.1, 20) == whole
    assert with_steps(whole, 1.0, 0.1, 0) == whole


def test_more_steps_and_less_noise_cost_more() -> None:
    steps = [epsilon([(0.3, 0.05, count)], DELTA) for count in (1, 10, 100, 2000, 10_000)]
    noises = [epsilon([(noise, 0.05, 50)], DELTA, "rdp") for noise in (10, 3, 1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)]
    assert steps == sorted(steps)
    assert noises == sorted(noises)


# ---- noise for a target ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "rate", "steps", "accountant"),
    [
        (0.3, 0.01, 100, "rdp"),
        (50.0, 0.1, 50, "rdp"),
        (1e4, 0.1, 100, "rdp"),
        (2.0, 0.01, 100, "prv"),
        (1e4, 0.1, 100, "prv"),
    ],
)
def test_the_noise_is_as_small_as_a_target_allows(target: float, rate: float, steps: int, accountant: str) -> None:
    noise = noise_for(target, DELTA, rate, steps, accountant)
    assert 0.99 * target <= epsilon([(noise, rate, steps)], DELTA, accountant) <= target


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_the_noise_is_that_of_opacus() -> None:
    theirs = get_noise_multiplier(
        target_epsilon=3.0, target_delta=DELTA, sample_rate=0.02, steps=500, accountant="rdp", epsilon_tolerance=0.001
    )
    assert noise_for(3.0, DELTA, 0.02, 500, "rdp") == pytest.approx(theirs, rel=0.005)


def test_the_noise_takes_earlier_steps_into_account() -> None:
    before = [(1.0, 0.01, 500)]
    noise = noise_for(3.0, DELTA, 0.01, 500, "rdp", history=before)
    assert noise > noise_for(3.0, DELTA, 0.01, 500, "rdp")
    assert 2.97 <= epsilon([*before, (noise, 0.01, 500)], DELTA, "rdp") <= 3.0


def test_a_target_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"target_epsilon is 1.0; expected one that .* have spent 6\.7"):
        noise_for(1.0, DELTA, 0.1, 10, "rdp", history=[(1.0, 0.1, 50)])
    with pytest.raises(ArgumentError, match=r"is 1e-09; expected one that 10 steps can keep with some noise\."):
        noise_for(1e-9, DELTA, 0.1, 10, "rdp")


# ---- steps within a budget ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "rate", "noise", "accountant"),
    [(1.0, 0.01, 1.0, "prv"), (5.0, 0.1, 1.0, "rdp"), (30.0, 0.2, 0.5, "rdp")],
)
def test_the_last_step_within_a_budget(budget: float, rate: float, noise: float, accountant: str) -> None:
    steps = steps_within(budget, DELTA, rate, noise, accountant)
    assert epsilon([(noise, rate, steps)], DELTA, accountant) <= budget
    assert epsilon([(noise, rate, steps + 1)], DELTA, accountant) > budget


def test_steps_within_counts_what_was_spent_and_stops_looking() -> None:
    all_at_once = steps_within(5.0, DELTA, 0.1, 1.0, "rdp")
    assert steps_within(5.0, DELTA, 0.1, 1.0, "rdp", history=[(1.0, 0.1, 10)]) == all_at_once - 10
    assert steps_within(5.0, DELTA, 0.1, 1.0, "rdp", at_most=7) == 7
    assert steps_within(5.0, DELTA, 0.1, 1.0, "rdp", history=[(1.0, 0.1, 200)]) == 0
    assert steps_within(0.5, DELTA, 0.5, 0.5, "rdp") == 0


# ---- arguments ------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"accountant is 'gdp'; expected one of 'prv', 'rdp'.*too small"):
        epsilon([(1.0, 0.1, 1)], DELTA, "gdp")
    with pytest.raises(ArgumentError, match=r"accountant is 'moments'; expected one of 'prv', 'rdp'\."):
        epsilon([(1.0, 0.1, 1)], DELTA, "moments")
    for delta in (0.0, 1.0, -1.0, "1e-6", True):
        with pytest.raises(ArgumentError, match="delta is "):
            epsilon([(1.0, 0.1, 1)], delta)  # type: ignore[arg-type]
    for entry in ((-1.0, 0.1, 1), (1.0, 1.1, 1), (1.0, 0.1, -1), (math.nan, 0.1, 1)):
        with pytest.raises(ArgumentError, match="history is "):
            epsilon([entry], DELTA)
