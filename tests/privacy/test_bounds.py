"""What right guesses prove about epsilon: by hand, against slow oracles, and on mechanisms that are counted out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure.intervals import clopper_pearson
from lightning_exposure.privacy.audit._bounds import (
    group_delta,
    one_run_epsilon,
    one_run_p_value,
    rates_epsilon,
    tries_epsilon,
    tries_p_value,
)


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


# --- the one-run bound, by hand ------------------------------------------------------------------------------


def test_all_right_is_the_logit_of_a_root() -> None:
    for guesses in (5, 10, 100):
        limit = 0.05 ** (1 / guesses)  # q with q ** guesses = 5%
        assert one_run_epsilon(guesses, guesses) == pytest.approx(max(0.0, logit(limit)))
    assert one_run_epsilon(4, 4) == 0.0, "one in sixteen is more than 5%"
    assert one_run_epsilon(5, 5) == pytest.approx(0.19776, abs=1e-5)


def test_nine_of_ten_by_solving_the_polynomial() -> None:
    # P[at least 9 of 10] = 10 q^9 (1 - q) + q^10 = 10 q^9 - 9 q^10 = 5%
    roots = np.roots([-9, 10, 0, 0, 0, 0, 0, 0, 0, 0, -0.05])
    (limit,) = (root.real for root in roots if abs(root.imag) < 1e-12 and 0 < root.real < 1)
    assert one_run_epsilon(9, 10) == pytest.approx(logit(limit))
    assert one_run_p_value(9, 10, logit(limit), 0.0, 10) == pytest.approx(0.05)


def test_no_better_than_luck_proves_nothing() -> None:
    assert one_run_epsilon(50, 100) == one_run_epsilon(0, 100) == one_run_epsilon(0, 0) == 0.0


def test_the_example_of_the_paper() -> None:
    # Appendix D of Steinke, Nasr and Jagielski: 1,000 canaries, 100 guesses, 75 right, delta 1e-4.
    assert one_run_epsilon(75, 100, delta=1e-4, canaries=1000) == pytest.approx(0.673, abs=5e-4)


def p_value_oracle(correct: int, guesses: int, epsilon: float, delta: float, canaries: int) -> float:
    """The formula of the theorem, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))

    def at_least(number: int) -> float:
        terms = (math.comb(guesses, n) * q**n * (1 - q) ** (guesses - n) for n in range(max(0, number), guesses + 1))
        return math.fsum(terms)

    best = max(((at_least(correct - i) - at_least(correct)) / i for i in range(1, correct + 1)), default=0.0)
    return min(1.0, at_least(correct) + 2 * canaries * delta * best)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.2])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_the_p_value_is_the_formula(epsilon: float, delta: float) -> None:
    for guesses, canaries in ((1, 1), (7, 9), (40, 100)):
        for correct in range(guesses + 1):
            expected = p_value_oracle(correct, guesses, epsilon, delta, canaries)
            found = one_run_p_value(correct, guesses, epsilon, delta, canaries)
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_with_a_delta_the_bound_is_where_the_p_value_reaches_the_error() -> None:
    for correct in (70, 90, 100):
        bound = one_run_epsilon(correct, 100, delta=1e-5, canaries=500, confidence=0.9)
        assert one_run_p_value(correct, 100, bound, 1e-5, 500) == pytest.approx(0.1, rel=1e-6)
        assert one_run_p_value(correct, 100, bound + 1e-3, 1e-5, 500) > 0.1


def test_a_larger_delta_or_more_confidence_lowers_the_bound() -> None:
    by_delta = [one_run_epsilon(90, 100, delta=delta, canaries=200) for delta in (0.0, 1e-6, 1e-4, 1e-3, 0.1)]
    assert by_delta == sorted(by_delta, reverse=True)
    assert len(set(by_delta)) == 5
    assert by_delta[-1] == 0.0
    by_confidence = [one_run_epsilon(90, 100, confidence=confidence) for confidence in (0.5, 0.9, 0.99, 0.999)]
    assert by_confidence == sorted(by_confidence, reverse=True)


# --- the theorem holds, counted out on mechanisms that are known ----------------------------------------------


def test_on_randomized_response_the_p_value_is_the_true_probability() -> None:
    epsilon, canaries = 0.8, 8
    honest = 1 / (1 + math.exp(-epsilon))
    probabilities = [0.0] * (canaries + 1)
    for lies in itertools.product([False, True], repeat=canaries):  # guess what it tells: right where it does not lie
        probabilities[lies.count(False)] += math.prod(1 - honest if lie else honest for lie in lies)
    for correct in range(canaries + 1):
        true = sum(probabilities[correct:])
        assert one_run_p_value(correct, canaries, epsilon, 0.0, canaries) == pytest.approx(true)


@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.3])
@pytest.mark.parametrize("canaries", [1, 5, 30])
def test_a_delta_is_granted_however_it_is_spent(delta: float, canaries: int) -> None:
    """Both are (0, delta)-private: every record is laid open with probability delta, alone or all at once."""
    each_alone = stats.binom(canaries, 0.5 + delta / 2)
    by_luck = stats.binom(canaries, 0.5)
    for correct in range(1, canaries + 1):
        p_value = one_run_p_value(correct, canaries, 0.0, delta, canaries)
        assert each_alone.sf(correct - 1) <= p_value + 1e-12
        assert delta + (1 - delta) * by_luck.sf(correct - 1) <= p_value + 1e-12


def test_a_group_of_records_is_granted_what_group_privacy_gives() -> None:
    assert group_delta(0.5, 1e-5, 1) == 1e-5
    assert group_delta(0.5, 1e-5, 3) == pytest.approx(1e-5 * (1 + math.exp(0.5) + math.exp(1.0)))
    assert group_delta(0.0, 1e-5, 3) == pytest.approx(3e-5)
    assert group_delta(2.0, 1e-5, 8) == group_delta(2.0, 1e-5, 1000) == 1.0, "never more than 1"
    assert group_delta(2.0, 0.0, 1000) == 0.0
    assert one_run_epsilon(95, 100, records=4) == pytest.approx(one_run_epsilon(95, 100) / 4)
    bound = one_run_epsilon(95, 100, records=4, delta=1e-5)
    assert one_run_p_value(95, 100, 4 * bound, group_delta(bound, 1e-5, 4), 100) == pytest.approx(0.05, rel=1e-6)
    assert 0 < bound < one_run_epsilon(95, 100, records=4)
    assert one_run_epsilon(100, 100, records=64, delta=1e-5) > 0


# --- several tries ------------------------------------------------------------------------------------------


def test_several_tries_without_a_delta_share_the_error_evenly() -> None:
    correct, guesses = [30, 55, 9], [40, 60, 10]
    one_by_one = [one_run_epsilon(c, g, confidence=1 - 0.05 / 3) for c, g in zip(correct, guesses, strict=True)]
    bound, best = tries_epsilon(correct, guesses, delta=0.0, canaries=100, error=0.05)
    assert bound == pytest.approx(max(one_by_one))
    assert best == 1
    assert tries_p_value(correct, guesses, bound, 0.0, 100) == pytest.approx(0.05)


def test_free_guesses_are_forgiven_and_paid_for_once() -> None:
    by_hand = 3 * stats.binom.sf(52, 60, 1 / (1 + math.exp(-1.0))) + 100 * 1e-3 / 3
    assert tries_p_value([30, 55, 9], [40, 60, 10], 1.0, 1e-3, 100, forgiven=2) == pytest.approx(by_hand)
    settings: dict[str, Any] = {"canaries": 100, "error": 0.05}
    bounds = [tries_epsilon([30, 55, 9], [40, 60, 10], delta=delta, **settings)[0] for delta in (0, 1e-6, 1e-4, 1e-2)]
    assert bounds == sorted(bounds, reverse=True)
    assert len(set(bounds)) == 4
    assert tries_p_value([30, 55, 9], [40, 60, 10], bounds[2], 1e-4, 100) == pytest.approx(0.05)
    per_record = tries_epsilon([30, 55, 9], [40, 60, 10], delta=1e-5, records=2, **settings)[0]
    there = group_delta(per_record, 1e-5, 2)
    assert tries_p_value([30, 55, 9], [40, 60, 10], 2 * per_record, there, 100) == pytest.approx(0.05)


@pytest.mark.parametrize("delta", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("forgiven", [0, 1, 3])
def test_several_tries_grant_a_delta_however_it_is_spent(delta: float, forgiven: int) -> None:
    """As above, with two tries, about all of twelve canaries and about the first five of them.

    A p-value is right if it is below any level no more often than that level says.
    """
    counts = list(itertools.product(range(6), range(8)))  # right ones among the first five, and among the others
    p_values = {
        (first, rest): tries_p_value([first + rest, first], [12, 5], 0.0, delta, 12, forgiven=forgiven)
        for first, rest in counts
    }
    luck = {(a, b): stats.binom.pmf(a, 5, 0.5) * stats.binom.pmf(b, 7, 0.5) for a, b in counts}
    each = 0.5 + delta / 2
    each_alone = {(a, b): stats.binom.pmf(a, 5, each) * stats.binom.pmf(b, 7, each) for a, b in counts}
    all_at_once = {pair: (1 - delta) * chance + delta * (pair == (5, 7)) for pair, chance in luck.items()}
    for mechanism in (luck, each_alone, all_at_once):
        assert sum(mechanism.values()) == pytest.approx(1.0)
        for level in set(p_values.values()) - {1.0}:
            below = sum(chance for pair, chance in mechanism.items() if p_values[pair] <= level)
            assert below <= level + 1e-12


# --- rates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.9, 0.999])
def test_the_limits_of_a_proportion_are_those_of_scipy(confidence: float) -> None:
    hits, trials = np.array([0, 1, 7, 19, 20]), 20
    low, high = clopper_pearson(hits, trials, confidence)
    for place, hit in enumerate(hits):
        test = stats.binomtest(int(hit), trials)
        both = test.proportion_ci(1 - 2 * (1 - confidence), method="exact")
        assert low[place] == pytest.approx(both.low)
        assert high[place] == pytest.approx(both.high)


def test_two_rates_by_hand() -> None:
    assert rates_epsilon(0.8, 0.1) == pytest.approx(math.log(8.0))
    assert rates_epsilon(0.9, 0.5) == pytest.approx(math.log(0.5 / 0.1)), "the other way round proves more"
    assert rates_epsilon(0.8, 0.1, delta=0.3) == pytest.approx(math.log(0.5 / 0.1))
    assert rates_epsilon(0.3, 0.6) == rates_epsilon(0.5, 0.5) == 0.0
    assert rates_epsilon(0.8, 0.1, records=3) == pytest.approx(math.log(8.0) / 3)
    found = rates_epsilon(0.8, 0.01, records=3, delta=0.01)
    assert math.exp(3 * found) * 0.01 + group_delta(found, 0.01, 3) == pytest.approx(0.8)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"correct is 5, guesses is 4 and canaries is 4; expected 0 <= "):
        one_run_p_value(5, 4, 0.0, 0.0, 4)
    with pytest.raises(ArgumentError, match=r"expected 0 <= correct <= guesses <= canaries"):
        one_run_epsilon(4, 4, canaries=3)
    with pytest.raises(ArgumentError, match=r"epsilon is -1; expected a number of at least 0"):
        one_run_p_value(4, 4, -1, 0.0, 4)
    with pytest.raises(ArgumentError, match=r"tpr_low is 1\.0 and fpr_high is 0\.0; expected limits that leave room"):
        rates_epsilon(1.0, 0.0)
