"""What right guesses prove about epsilon: by hand, against slow oracles, and on mechanisms that are counted out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure.intervals import clopper_pearson
from lightning_exposure.privacy.audit._bounds import group_delta, rates_epsilon
from lightning_exposure.privacy.audit._gaussian import gaussian_epsilon, gaussian_mu
from lightning_exposure.privacy.audit._guessing import GuessingTest
from lightning_exposure.privacy.audit._one_run import (
    block_leverage,
    count_p_value,
    refuted_epsilon,
    staged_luck,
    staged_p_value,
)


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


# --- one number of guesses ----------------------------------------------------------------------------------


def one_test(guesses: int, error: float = 0.05, *, sides: int = 2) -> GuessingTest:
    return GuessingTest((guesses // sides,), sides, error)


def bound(correct: int, guesses: int, *, error: float = 0.05, canaries: int | None = None, **settings: Any) -> float:
    canaries = guesses if canaries is None else canaries
    settings = {"delta": 0.0, **settings}
    return refuted_epsilon(one_test(guesses, error), (correct,), canaries=canaries, **settings)[0]


def test_all_right_is_the_logit_of_a_root() -> None:
    for guesses in (6, 10, 100):
        limit = 0.05 ** (1 / guesses)  # q with q ** guesses = 5%
        assert bound(guesses, guesses) == pytest.approx(max(0.0, logit(limit)))
    assert bound(4, 4) == 0.0, "one in sixteen is more than 5%"


def test_nine_of_ten_by_solving_the_polynomial() -> None:
    # P[at least 9 of 10] = 10 q^9 (1 - q) + q^10 = 10 q^9 - 9 q^10 = 5%
    roots = np.roots([-9, 10, 0, 0, 0, 0, 0, 0, 0, 0, -0.05])
    (limit,) = (root.real for root in roots if abs(root.imag) < 1e-12 and 0 < root.real < 1)
    assert bound(9, 10) == pytest.approx(logit(limit))
    assert count_p_value(9, 10, logit(limit), 0.0) == pytest.approx(0.05)


def test_no_better_than_luck_proves_nothing() -> None:
    assert bound(50, 100) == bound(0, 100) == bound(0, 0) == 0.0


def program(correct: int, guesses: int, epsilon: float, free: float) -> float:
    """The most likely that so many right guesses can be: a linear program over the distributions of their number.

    Unknown are the probabilities of each number, and by how much each exceeds what the next lower one allows.
    """
    excess = np.zeros((guesses, 2 * guesses + 1))
    for s in range(1, guesses + 1):
        excess[s - 1, [s, s - 1, guesses + s]] = s, -math.exp(epsilon) * (guesses - s + 1), -1.0
    granted = np.concatenate([np.zeros(guesses + 1), np.ones(guesses)])
    found = optimize.linprog(
        -1.0 * (np.arange(2 * guesses + 1) >= correct) * (granted == 0.0),
        A_ub=np.vstack([excess, granted]),
        b_ub=[0.0] * guesses + [free],
        A_eq=1.0 - granted[None],
        b_eq=[1.0],
    )
    return float(-found.fun)


def published(correct: int, guesses: int, epsilon: float, delta: float, canaries: int) -> float:
    """Theorem 5.2 of Steinke, Nasr and Jagielski, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))

    def at_least(number: int) -> float:
        terms = (math.comb(guesses, n) * q**n * (1 - q) ** (guesses - n) for n in range(max(0, number), guesses + 1))
        return math.fsum(terms)

    best = max(((at_least(correct - i) - at_least(correct)) / i for i in range(1, correct + 1)), default=0.0)
    return min(1.0, at_least(correct) + 2 * canaries * delta * best)


@pytest.mark.parametrize("free", [0.0, 1e-4, 0.05, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
def test_the_p_value_is_the_worst_that_any_training_can_do(epsilon: float, free: float) -> None:
    for guesses in (1, 7, 25):
        for correct in range(guesses + 1):
            found = count_p_value(correct, guesses, epsilon, free)
            assert found == pytest.approx(program(correct, guesses, epsilon, free), rel=1e-6, abs=1e-9)
            if (theirs := published(correct, guesses, epsilon, free / guesses, guesses)) < 0.5:
                assert found <= theirs + 1e-12


def test_the_example_of_the_paper_proves_a_little_more() -> None:
    # Appendix D of Steinke, Nasr and Jagielski: 1,000 canaries, 100 guesses, 75 right, delta 1e-4 prove 0.673.
    assert published(75, 100, 0.673, 1e-4, 1000) == pytest.approx(0.05, abs=5e-4)
    assert 0.673 < bound(75, 100, delta=1e-4, canaries=1000) < bound(75, 100)


def test_the_p_value_does_not_break_where_probabilities_vanish() -> None:
    assert count_p_value(2000, 2000, 0.0, 1.0) == pytest.approx(1.0 / 2000)
    assert 0.0 < count_p_value(1900, 2000, 0.1, 20.0) < 0.05
    assert count_p_value(1, 2000, 0.5, 20.0) == 1.0


def test_with_a_delta_the_bound_is_where_the_p_value_reaches_the_error() -> None:
    for correct in (70, 90, 100):
        found = bound(correct, 100, delta=1e-5, canaries=500, error=0.1)
        assert count_p_value(correct, 100, found, 500 * 1e-5) == pytest.approx(0.1, rel=1e-6)
        assert count_p_value(correct, 100, found + 1e-3, 500 * 1e-5) > 0.1


def test_a_larger_delta_or_more_confidence_lowers_the_bound() -> None:
    by_delta = [bound(90, 100, delta=delta, canaries=200) for delta in (0.0, 1e-6, 1e-4, 1e-3, 0.1)]
    assert by_delta == sorted(by_delta, reverse=True)
    assert len(set(by_delta)) == 5
    assert by_delta[-1] == 0.0
    by_error = [bound(90, 100, error=error) for error in (0.5, 0.1, 0.01, 0.001)]
    assert by_error == sorted(by_error, reverse=True)


# --- the theorem holds, counted out on mechanisms that are known ----------------------------------------------


def test_on_randomized_response_the_p_value_is_the_true_probability() -> None:
    epsilon, canaries = 0.8, 8
    honest = 1 / (1 + math.exp(-epsilon))
    probabilities = [0.0] * (canaries + 1)
    for lies in itertools.product([False, True], repeat=canaries):  # guess what it tells: right where it does not lie
        probabilities[lies.count(False)] += math.prod(1 - honest if lie else honest for lie in lies)
    for correct in range(canaries + 1):
        true = sum(probabilities[correct:])
        assert count_p_value(correct, canaries, epsilon, 0.0) == pytest.approx(true)


@pytest.mark.parametrize("delta", [1e-3, 0.02, 0.3])
@pytest.mark.parametrize("canaries", [1, 5, 30])
def test_a_delta_is_granted_however_it_is_spent(delta: float, canaries: int) -> None:
    """Both are (0, delta)-private: every record is laid open with probability delta, alone or all at once."""
    each_alone = stats.binom(canaries, 0.5 + delta / 2)
    by_luck = stats.binom(canaries, 0.5)
    for correct in range(1, canaries + 1):
        p_value = count_p_value(correct, canaries, 0.0, canaries * delta)
        assert each_alone.sf(correct - 1) <= p_value + 1e-12
        assert delta + (1 - delta) * by_luck.sf(correct - 1) <= p_value + 1e-12


def test_a_group_of_records_is_granted_what_group_privacy_gives() -> None:
    assert group_delta(0.5, 1e-5, 1) == 1e-5
    assert group_delta(0.5, 1e-5, 3) == pytest.approx(1e-5 * (1 + math.exp(0.5) + math.exp(1.0)))
    assert group_delta(0.0, 1e-5, 3) == pytest.approx(3e-5)
    assert group_delta(2.0, 1e-5, 8) == group_delta(2.0, 1e-5, 1000) == 1.0, "never more than 1"
    assert group_delta(2.0, 0.0, 1000) == 0.0
    assert bound(95, 100, records=4) == pytest.approx(bound(95, 100) / 4)
    found = bound(95, 100, records=4, delta=1e-5)
    assert count_p_value(95, 100, 4 * found, 100 * group_delta(found, 1e-5, 4)) == pytest.approx(0.05, rel=1e-6)
    assert 0 < found < bound(95, 100, records=4)
    assert bound(100, 100, records=64, delta=1e-5) > 0


# --- stages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.8])
@pytest.mark.parametrize("sizes", [(3, 5, 9), (4, 6, 8, 10)])
def test_the_luck_of_stages_is_counted_out(sizes: tuple[int, ...], epsilon: float) -> None:
    q = 1 / (1 + math.exp(-epsilon))
    for level in (0.3, 0.1, 0.02, 0.001):
        needed = [next(w for w in range(n + 2) if stats.binom.sf(w - 1, n, q) <= level) for n in sizes]
        true = 0.0
        for right in itertools.product([0, 1], repeat=sizes[-1]):
            if any(sum(right[:n]) >= w for n, w in zip(sizes, needed, strict=True)):
                true += math.prod(q if one else 1 - q for one in right)
        assert staged_luck(level, sizes, epsilon) == pytest.approx(true, abs=1e-12)
        assert true <= level * len(sizes), "never more than tests apart"


@pytest.mark.parametrize("sizes", [(2, 4, 7), (4, 8)])
def test_what_delta_adds_to_stages_is_never_more_than_the_leverage(sizes: tuple[int, ...]) -> None:
    """The worst distribution over all outcomes, by a linear program, for events that stages can give."""
    epsilon, free, places = 0.4, 0.05, sizes[-1]
    q = 1 / (1 + math.exp(-epsilon))
    outcomes = list(itertools.product([0, 1], repeat=places))
    index = {outcome: row for row, outcome in enumerate(outcomes)}
    chances = np.array([math.prod(q if one else 1 - q for one in outcome) for outcome in outcomes])
    edges = [(o, (*o[:k], 0, *o[k + 1 :])) for o in outcomes for k in range(places) if o[k]]
    unknowns = len(outcomes) + len(edges)
    rows = np.zeros((len(edges) + 1, unknowns))
    for row, (upper, lower) in enumerate(edges):
        rows[row, [index[upper], index[lower], len(outcomes) + row]] = chances[index[upper]], -chances[index[upper]], -1
    rows[-1, len(outcomes) :] = 1.0
    whole = np.concatenate([chances, np.zeros(len(edges))])[None]
    leverage = max(block_leverage(b - a, epsilon) for a, b in itertools.pairwise((0, *sizes)))
    for level in (0.3, 0.1, 0.03):
        needed = [next(w for w in range(n + 2) if stats.binom.sf(w - 1, n, q) <= level) for n in sizes]
        event = np.array([any(sum(o[:n]) >= w for n, w in zip(sizes, needed, strict=True)) for o in outcomes])
        goal = -np.concatenate([chances * event, np.zeros(len(edges))])
        worst = -optimize.linprog(goal, A_ub=rows, b_ub=[0.0] * len(edges) + [free], A_eq=whole, b_eq=[1.0]).fun
        luck = float(chances[event].sum())
        assert luck < worst <= luck + free * leverage + 1e-9


def test_the_leverage_falls_with_epsilon_and_with_the_size_of_a_block() -> None:
    for guesses in (1, 2, 3, 8, 40, 301):
        found = [block_leverage(guesses, epsilon) for epsilon in np.arange(0, 9, 0.25)]
        assert found == sorted(found, reverse=True)
    sizes = [block_leverage(guesses, 1.0) for guesses in range(1, 200)]
    assert sizes == sorted(sizes, reverse=True)


def test_a_bound_by_stages_is_where_the_p_value_first_exceeds_the_error() -> None:
    test = GuessingTest((5, 8, 20, 50), 2, 0.05)
    correct = (10, 15, 33, 70)
    found, stage = refuted_epsilon(test, correct, delta=1e-5, canaries=120)
    p_values = [staged_p_value(correct, test.guesses, 0.01 * step, 120 * 1e-5) for step in range(200)]
    assert found == pytest.approx(0.01 * (next(step for step, p in enumerate(p_values) if p > 0.05) - 1))
    alone = [stats.binom.sf(c - 1, n, 1 / (1 + math.exp(-found))) for c, n in zip(correct, test.guesses, strict=True)]
    assert stage == int(np.argmin(alone))


# --- a Gaussian trade-off -----------------------------------------------------------------------------------


def test_the_epsilon_of_a_gaussian_has_the_delta_that_was_asked_for() -> None:
    for mu, delta in itertools.product((0.1, 1.0, 5.0), (1e-9, 1e-5, 1e-2)):
        epsilon = gaussian_epsilon(mu, delta)
        # P[loss > epsilon] - e^epsilon P'[loss > epsilon], by integrating the densities.
        grid = np.linspace(-40, 40, 400_001)
        there, here = stats.norm.pdf(grid - mu), stats.norm.pdf(grid)
        integral = np.trapezoid(np.maximum(0.0, there - math.exp(epsilon) * here), grid)
        assert integral == pytest.approx(delta, rel=1e-3)
    assert gaussian_epsilon(0.0, 1e-5) == gaussian_epsilon(1e-9, 1e-2) == 0.0


def test_the_gaussian_bound_is_the_published_recursion() -> None:
    def refuted(mu: float, correct: int, guesses: int, canaries: int, error: float) -> bool:
        right, wrong = error * correct / canaries, error * (guesses - correct) / canaries
        for count in range(correct - 1, -1, -1):
            more = max(wrong, stats.norm.cdf(stats.norm.ppf(min(right, 1.0)) - mu))
            right += count / (guesses - count) * (more - wrong)
            wrong = more
        return bool(right + wrong > guesses / canaries)

    for correct, guesses, canaries in ((30, 32, 40), (80, 100, 400), (100, 100, 1000)):
        mu = gaussian_mu(correct, guesses, canaries, 0.05)
        assert refuted(mu - 1e-6, correct, guesses, canaries, 0.05)
        assert not refuted(mu + 2e-3, correct, guesses, canaries, 0.05)
    assert gaussian_mu(50, 100, 200, 0.05) == 0.0


def gaussian_program(correct: int, guesses: int, canaries: int, mu: float) -> float:
    """The most likely that so many right guesses can be: a linear program over the distributions of their number.

    For each j, the mass of right guesses in outcomes with at least j right ones is at most F of that of wrong guesses
    in outcomes with at least j - 1. F is concave, so that it is the least of its tangents; some of them bound it.
    """
    number = np.arange(guesses + 1)
    at = np.linspace(-7.0, 7.0, 400)
    value, slope = stats.norm.cdf(at + mu), stats.norm.pdf(at + mu) / stats.norm.pdf(at)
    rows, limits = [], []
    for j in range(1, guesses + 1):
        right, wrong = number * (number >= j) / canaries, (guesses - number) * (number >= j - 1) / canaries
        rows.append(right[None] - slope[:, None] * wrong[None])
        limits.append(value - slope * stats.norm.cdf(at))
    found = optimize.linprog(
        -1.0 * (number >= correct),
        A_ub=np.vstack(rows), b_ub=np.concatenate(limits), A_eq=np.ones((1, guesses + 1)), b_eq=[1.0],
    )  # fmt: skip
    return float(-found.fun)


@pytest.mark.parametrize(("correct", "guesses", "canaries"), [(9, 10, 20), (14, 16, 16), (20, 24, 60)])
def test_what_the_gaussian_bound_refutes_no_gaussian_can_do_and_what_it_leaves_one_can(
    correct: int, guesses: int, canaries: int
) -> None:
    mu = gaussian_mu(correct, guesses, canaries, 0.05)
    assert gaussian_program(correct, guesses, canaries, mu) == pytest.approx(0.05, rel=0.01)
    assert gaussian_program(correct, guesses, canaries, 1.1 * mu) > 0.05
    assert gaussian_program(correct, guesses, canaries, 0.9 * mu) < 0.05


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussian_that_is_laid_open_for_all_canaries_at_once_is_not_accused(mu: float, sides: int) -> None:
    """The worst that canaries can do together: one draw decides how far all of them are laid open.

    Each of them alone is a Gaussian that is shifted by mu. Guesses about the first half, always "in" if on one side.
    """
    generator = np.random.default_rng(0)
    canaries, guesses, wrong = 60, 30, 0
    for _ in range(2000):
        shift = generator.normal(mu / 2, 1.0)
        surely = abs(mu * shift)  # how large the odds are
        members = generator.random(canaries) < 0.5
        told = members ^ (generator.random(canaries) > 1 / (1 + math.exp(-surely)))
        called_in = np.flatnonzero(told)[:guesses] if sides == 1 else np.arange(guesses)
        if len(called_in) < guesses and sides == 1:
            continue
        right = int((told == members)[called_in].sum())
        wrong += gaussian_mu(right, guesses, canaries * sides / 2, 0.05) > mu
    assert wrong <= stats.binom.isf(1e-4, 2000, 0.05)


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
    with pytest.raises(ArgumentError, match=r"tpr_low is 1\.0 and fpr_high is 0\.0; expected limits that leave room"):
        rates_epsilon(1.0, 0.0)
