"""The audit of scores: its guesses, its bounds on mechanisms whose epsilon is known, and what it refuses."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from lightning_exposure.errors import ArgumentError, ScoreError
from lightning_exposure.privacy.audit._gaussian import gaussian_epsilon
from lightning_exposure.privacy.audit._guessing import gaussian_plan, plan, right_guesses
from lightning_exposure.privacy.audit._one_run import refuted_epsilon
from lightning_exposure.privacy.audit.audit import AuditResult, audit, largest_provable_epsilon
from lightning_exposure.privacy.audit.separation import attack_accuracy, auc, tpr_at_fpr

Scores = tuple[NDArray[np.float64], NDArray[np.float64]]


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


def tossed(generator: np.random.Generator, canaries: int) -> NDArray[np.bool_]:
    """Who is in, by fair coins."""
    return generator.random(canaries) < 0.5


def parted(scores: NDArray[np.float64], members: NDArray[np.bool_]) -> Scores:
    return scores[members], scores[~members]


def randomized_response(
    generator: np.random.Generator, canaries: int, epsilon: float, *, ties: bool = True, records: int = 1
) -> Scores:
    """Every record tells whether it was in, and lies with probability 1 / (1 + e^epsilon): exactly epsilon-private."""
    members = tossed(generator, canaries)
    lies = generator.random((records, canaries)) > 1 / (1 + math.exp(-epsilon))
    told = (members ^ lies).sum(axis=0).astype(float)
    return parted(told if ties else told + 1e-3 * generator.random(canaries), members)


def allowed(trials: int, rate: float = 0.05) -> int:
    """So many false claims in some trials are surpassed with a probability of one in ten thousand."""
    return int(stats.binom.isf(1e-4, trials, rate))


# --- the classical bound ------------------------------------------------------------------------------------


def classical_oracle(scores_in: list[float], scores_out: list[float], delta: float, confidence: float) -> float:
    """Thresholds at the scores of those out that stand 1st, 2nd, 3rd, 5th, 6th, ... from the top or from the bottom."""
    places = sorted({place for n in (0, 1, 2, 4, 5, 8, 11, 16) for place in (n, 19 - n) if n <= 9})
    error = (1 - confidence) / (2 * len(places))
    best = 0.0
    for place in places:
        threshold = sorted(scores_out, reverse=True)[place]
        true = sum(score > threshold for score in scores_in)
        tpr = stats.binomtest(true, len(scores_in)).proportion_ci(1 - 2 * error, method="exact").low
        fpr = stats.binomtest(place, len(scores_out)).proportion_ci(1 - 2 * error, method="exact").high
        for rate, other in ((tpr, fpr), (1 - fpr, 1 - tpr)):
            if rate > delta:
                best = max(best, math.log((rate - delta) / other))
    return best


@pytest.mark.parametrize("shift", [0.0, 1.5, 3.0, 9.0])
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_the_classical_bound_is_the_best_threshold(shift: float, delta: float) -> None:
    generator = np.random.default_rng(3)
    scores_in, scores_out = generator.normal(shift, 1, 23).tolist(), generator.normal(0, 1, 20).tolist()
    found = audit(scores_in, scores_out, delta=delta, confidence=0.9).epsilon_lower_classical
    assert found == pytest.approx(classical_oracle(scores_in, scores_out, delta, 0.9))


# --- the attack ---------------------------------------------------------------------------------------------


def test_auc_accuracy_and_tpr_are_what_counting_gives() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        scores_in, scores_out = generator.integers(0, 9, 17) + 1.0, generator.integers(0, 9, 31) * 1.0
        pairs = [(a > b) + 0.5 * (a == b) for a in scores_in for b in scores_out]
        assert auc(scores_in, scores_out) == pytest.approx(np.mean(pairs))
        # Every order of equal scores is as likely as any other: shuffle, and call the first 17 members.
        marks = np.array([1] * 17 + [0] * 31)
        everything = np.concatenate([scores_in, scores_out])
        shares = []
        for _ in range(400):
            order = generator.permutation(48)
            called = order[np.argsort(-everything[order], kind="stable")][:17]
            tpr = marks[called].sum() / 17
            shares.append((tpr + 1 - (17 - marks[called].sum()) / 31) / 2)
        assert attack_accuracy(scores_in, scores_out) == pytest.approx(np.mean(shares), abs=0.02)
        below_half = [t for t in range(-1, 11) if (scores_out > t).mean() <= 0.25]
        assert tpr_at_fpr(scores_in, scores_out, 0.25) == max((scores_in > t).mean() for t in below_half)


def test_one_percent_of_few_is_none() -> None:
    assert tpr_at_fpr([5.0, 3.0, 1.0], [0.0] * 98 + [2.0, 4.0]) == pytest.approx(2 / 3), (
        "one of a hundred may lie above"
    )
    assert tpr_at_fpr([5.0, 3.0, 1.0], [0.0] * 97 + [2.0, 4.0]) == pytest.approx(1 / 3), "none of 99 may"
    assert tpr_at_fpr([3.0], [3.0] * 10, 0.01) == 0.0, "equal is not above"
    with pytest.raises(ArgumentError, match=r"fpr is 1\.0; expected a number of at least 0 and below 1"):
        tpr_at_fpr([1.0], [0.0], 1.0)


def test_the_loss_of_privacy_goes_from_luck_to_certainty() -> None:
    apart = audit([3.0, 4.0, 5.0, 6.0], [0.0, 1.0, 2.0])
    assert (apart.accuracy, apart.auc, apart.tpr_at_1_percent_fpr, apart.privacy_loss) == (1.0, 1.0, 1.0, 1.0)
    wrong = audit([0.0, 1.0], [2.0, 3.0])
    assert (wrong.accuracy, wrong.auc, wrong.privacy_loss) == (0.0, 0.0, 0.0)
    middle = audit([4.0, 1.0, 5.0, 6.0], [0.0, 2.0, -1.0, -2.0])
    assert middle.accuracy == 0.75
    assert middle.privacy_loss == pytest.approx((0.75 - 0.5) / 0.5)


# --- the guesses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-4, 1e-3, 1e-2])
def test_the_plan_shares_out_the_error_and_never_guesses_twice(delta: float) -> None:
    for canaries in [*range(200), 1000, 12345]:
        for made, stages in ((plan(canaries, 0.05, delta), True), (gaussian_plan(canaries, 0.05), False)):
            assert sum(test.error for test in made) == pytest.approx(0.05)
            for test in made:
                assert all(size < more for size, more in itertools.pairwise(test.sizes))
                # A canary that two guesses are made about has the same guess in both.
                assert 2 * test.sizes[-1] <= canaries
                assert stages or len(test.sizes) == 1


def test_the_larger_delta_is_the_fewer_stages_there_are() -> None:
    counts = [[len(test.sizes) for test in plan(2000, 0.05, delta)] for delta in (0.0, 1e-5, 1e-4, 1e-3, 1e-2)]
    assert counts[0][0] >= counts[1][0] > counts[2][0] > 1
    assert counts[3:] == [[1, 1, 1], [1]]


def test_right_guesses_are_those_of_the_worst_order_of_equal_scores() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        scores, members = generator.integers(0, 3, 6).astype(float), tossed(generator, 6)
        called_in, called_out = right_guesses(*parted(scores, members))
        every_order = itertools.permutations(range(6))
        orders = [p for p in every_order if all(scores[a] >= scores[b] for a, b in itertools.pairwise(p))]
        for count in range(7):
            assert called_in[count] == min(members[list(order[:count])].sum() for order in orders)
            assert called_out[count] == min((~members[list(order[6 - count :])]).sum() for order in orders)


def test_with_everything_right_the_audit_proves_the_most_there_is() -> None:
    for canaries in (20, 100, 501):
        half = canaries // 2
        found = audit(np.arange(half) + 1000.0, np.arange(canaries - half))
        both, _ = plan(canaries, 0.05)
        assert found.epsilon_lower == found.epsilon_lower_one_run == largest_provable_epsilon(canaries)
        assert found.guesses == found.correct == both.guesses[-1]
        # As if it had been the only number of guesses, but for the step of the grid and the smaller stages.
        alone = logit(both.error ** (1 / found.guesses))
        assert alone - 0.3 < found.epsilon_lower <= alone
    assert largest_provable_epsilon(0) == largest_provable_epsilon(5) == 0.0
    assert largest_provable_epsilon(100, delta=1e-3) < largest_provable_epsilon(100)
    assert largest_provable_epsilon(100, 0.99) < largest_provable_epsilon(100)
    assert largest_provable_epsilon(100, records=2) == pytest.approx(largest_provable_epsilon(100) / 2, abs=0.01)


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_the_one_run_bound_is_that_of_the_best_test(share: float) -> None:
    """Counted by hand; only some of the members stand out, so that few guesses or many prove most."""
    generator = np.random.default_rng(1)
    members = tossed(generator, 600)
    scores = generator.normal(size=600) + 4 * (members & (generator.random(600) < share))
    ranked = members[np.argsort(-scores)]
    proved = {}
    for test in plan(600, 0.1):
        right = [int(ranked[:n].sum() + (~ranked[600 - n :]).sum() * (test.sides == 2)) for n in test.sizes]
        epsilon, stage = refuted_epsilon(test, right, delta=0.0, canaries=600)
        proved[right[stage], test.guesses[stage]] = epsilon
    found = audit(*parted(scores, members), confidence=0.9)
    assert found.epsilon_lower == pytest.approx(max(proved.values()))
    assert (found.correct, found.guesses) == max(proved, key=lambda pair: proved[pair])
    assert (found.guesses > 300) == (share == 1.0)


def test_equal_scores_prove_nothing() -> None:
    found = audit(np.zeros(60), np.zeros(50))
    assert (found.epsilon_lower, found.epsilon_lower_classical) == (0.0, 0.0)
    assert (found.auc, found.accuracy, found.tpr_at_1_percent_fpr) == (0.5, 0.5, 0.0)


def test_the_order_of_the_canaries_and_the_scale_of_their_scores_do_not_matter() -> None:
    generator = np.random.default_rng(0)
    scores_in, scores_out = generator.normal(1, 1, 200).round(1), generator.normal(0, 1, 190).round(1)
    found = audit(scores_in, scores_out, delta=1e-6)
    assert found.epsilon_lower > 0
    assert audit(generator.permutation(scores_in), scores_out[::-1], delta=1e-6) == found
    assert audit(np.exp(scores_in), np.exp(scores_out), delta=1e-6) == found
    assert audit(scores_in, scores_out, delta=1e-3).epsilon_lower < found.epsilon_lower
    assert audit(scores_in, scores_out, delta=1e-3).epsilon_lower_classical < found.epsilon_lower_classical


# --- many trials --------------------------------------------------------------------------------------------


def null_scores(generator: np.random.Generator, canaries: int) -> NDArray[np.float64]:
    return generator.normal(size=canaries)


def null_scores_with_ties(generator: np.random.Generator, canaries: int) -> NDArray[np.float64]:
    return generator.poisson(3.0, canaries).astype(float)


def null_scores_that_hang_together(generator: np.random.Generator, canaries: int) -> NDArray[np.float64]:
    """A few clusters: what one canary costs says what its neighbours cost."""
    return np.repeat(generator.standard_cauchy(canaries // 10 + 1), 10)[:canaries] + 0.1 * generator.random(canaries)


@pytest.mark.parametrize("canaries", [30, 300])
@pytest.mark.parametrize("make", [null_scores, null_scores_with_ties, null_scores_that_hang_together])
def test_a_model_that_tells_nothing_is_seldom_accused(
    make: Callable[[np.random.Generator, int], NDArray[np.float64]], canaries: int
) -> None:
    generator = np.random.default_rng(canaries)
    found = [audit(*parted(make(generator, canaries), tossed(generator, canaries))) for _ in range(1000)]
    assert sum(result.epsilon_lower_one_run > 0 for result in found) <= allowed(1000)
    if make is not null_scores_that_hang_together:  # the classical bound assumes that they do not
        assert sum(result.epsilon_lower_classical > 0 for result in found) <= allowed(1000)
    assert np.mean([result.accuracy for result in found]) == pytest.approx(0.5, abs=0.01), "no optimism"
    assert np.mean([result.auc for result in found]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_on_randomized_response_the_bound_is_below_the_truth_and_not_far(epsilon: float, ties: bool) -> None:
    generator = np.random.default_rng(int(10 * epsilon) + ties)
    found = [audit(*randomized_response(generator, 10_000, epsilon, ties=ties)) for _ in range(40)]
    one_run = np.array([result.epsilon_lower_one_run for result in found])
    classical = np.array([result.epsilon_lower_classical for result in found])
    assert (one_run > epsilon).sum() <= allowed(40)
    assert (classical > epsilon).sum() <= allowed(40)
    assert (one_run > 0.7 * epsilon).all()
    # The classical bound picks thresholds from a grid, and can't put one between the only two scores there are.
    assert (classical > (0.55 if ties else 0.65) * epsilon).all()
    assert np.median(classical) > (0.65 if ties else 0.75) * epsilon


@pytest.mark.parametrize("canaries", [50, 1000])
def test_fewer_canaries_make_no_bound_too_high(canaries: int) -> None:
    generator = np.random.default_rng(canaries)
    found = [audit(*randomized_response(generator, canaries, 1.0, ties=False)) for _ in range(200)]
    assert 0 < sum(result.epsilon_lower_one_run > 1.0 for result in found) <= allowed(200)
    assert sum(result.epsilon_lower_classical > 1.0 for result in found) <= allowed(200)


def test_copies_of_a_canary_do_not_make_the_bound_for_one_record_too_high() -> None:
    generator = np.random.default_rng(0)
    scores = [randomized_response(generator, 3000, 1.0, records=3) for _ in range(40)]
    per_record = np.array([audit(*each, records=3).epsilon_lower for each in scores])
    assert (per_record > 1.0).sum() <= allowed(40)
    assert np.median(per_record) > 0.5
    assert np.median([audit(*each).epsilon_lower for each in scores]) > 1.0, "or the test would prove nothing"


def test_a_training_that_now_and_then_lays_everything_open_has_that_delta() -> None:
    generator = np.random.default_rng(5)
    granted, naive = 0, 0
    for _ in range(200):
        members = tossed(generator, 60)
        told = members ^ (generator.random(60) > 1 / (1 + math.exp(-0.5)))
        if generator.random() < 0.1:
            told = members
        scores = parted(told + 1e-3 * generator.random(60), members)
        granted += audit(*scores, delta=0.1).epsilon_lower > 0.5
        naive += audit(*scores).epsilon_lower > 0.5
    assert granted <= allowed(200)
    assert naive > allowed(200), "or the test would prove nothing"


def test_a_trial_with_a_delta() -> None:
    """Randomized response in which each record is laid open with probability delta."""
    generator = np.random.default_rng(0)
    above = 0
    for _ in range(100):
        members = tossed(generator, 1000)
        told = members ^ (generator.random(1000) > 1 / (1 + math.exp(-1.0)))
        told = np.where(generator.random(1000) < 1e-3, members, told) + 1e-3 * generator.random(1000)
        above += audit(*parted(told, members), delta=1e-3).epsilon_lower > 1.0
    assert above <= allowed(100)


# --- a Gaussian trade-off -----------------------------------------------------------------------------------


def shifted(generator: np.random.Generator, canaries: int, mu: float) -> Scores:
    """Members have a score that is higher by mu, on average: a Gaussian mechanism for each canary."""
    members = tossed(generator, canaries)
    return parted(generator.normal(size=canaries) + mu * members, members)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_on_a_gaussian_the_gaussian_bound_proves_more_and_not_too_much(mu: float) -> None:
    generator = np.random.default_rng(0)
    truth = gaussian_epsilon(mu, 1e-5)
    found = [audit(*shifted(generator, 400, mu), delta=1e-5, bound="gaussian") for _ in range(30)]
    assert sum(result.epsilon_lower > truth for result in found) <= allowed(30)
    assert sum(result.epsilon_lower_one_run > truth for result in found) <= allowed(30)
    means = [np.mean([getattr(r, name) for r in found]) for name in ("epsilon_lower", "epsilon_lower_one_run")]
    assert means[0] > 1.2 * means[1]


def test_on_randomized_response_the_gaussian_bound_is_wrong_and_the_default_is_not() -> None:
    generator = np.random.default_rng(0)
    scores = randomized_response(generator, 20_000, 1.0, ties=False)
    plain, gaussian = audit(*scores, delta=1e-5), audit(*scores, delta=1e-5, bound="gaussian")
    assert plain.epsilon_lower == gaussian.epsilon_lower_one_run < 1.0 < gaussian.epsilon_lower
    assert plain.epsilon_lower_gaussian is None
    assert (plain.bound, gaussian.bound) == ("one_run", "gaussian")
    assert plain.assumption.startswith("none")
    assert "trades off false alarms and misses as a Gaussian does" in gaussian.assumption
    assert gaussian.assumption in gaussian._repr_html_()


def test_a_delta_of_one_percent_leaves_something_to_prove() -> None:
    generator = np.random.default_rng(0)
    for canaries, mu, least in ((400, 1.0, 0.2), (400, 2.0, 1.2), (2000, 2.0, 1.5)):
        found = [audit(*shifted(generator, canaries, mu), delta=1e-2).epsilon_lower for _ in range(10)]
        assert np.mean(found) > least


def test_copies_of_a_canary_shift_a_gaussian_further() -> None:
    generator = np.random.default_rng(0)
    scores = shifted(generator, 2000, 3.0)
    alone = audit(*scores, delta=1e-5, bound="gaussian").epsilon_lower
    per_record = audit(*scores, delta=1e-5, bound="gaussian", records=3).epsilon_lower
    assert 0 < per_record < alone / 3, "three records with a third of mu each; epsilon falls faster than mu"


# --- few, equal, lopsided -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["one_run", "gaussian"])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2, 0.5])
def test_every_small_case_gives_a_finite_bound_that_equal_scores_make_zero(delta: float, bound: Any) -> None:
    for inserted, held_out in itertools.product((1, 2, 3, 5, 9, 14), repeat=2):
        for confidence in (0.5, 0.95, 0.999):
            settings: dict[str, Any] = {"delta": delta, "bound": bound, "confidence": confidence}
            apart = audit(np.arange(inserted) + 100.0, np.arange(held_out) * 1.0, **settings).epsilon_lower
            assert 0.0 <= apart < 10.0
            if min(inserted, held_out) > 4:  # then some stage has more guesses than one side has members
                assert audit(np.zeros(inserted), np.zeros(held_out), **settings).epsilon_lower == 0.0
            reversed_ = audit(np.arange(inserted) * 1.0, np.arange(held_out) + 100.0, **settings)
            assert reversed_.epsilon_lower == 0.0 or min(inserted, held_out) < 5


@pytest.mark.parametrize("bound", ["one_run", "gaussian"])
def test_one_more_right_guess_never_lowers_a_bound(bound: Any) -> None:
    """A member that moves up past others can only prove more, whatever the sizes and the ties."""
    generator = np.random.default_rng(0)
    for canaries in (20, 61, 200):
        members = tossed(generator, canaries)
        scores = (generator.normal(size=canaries) + 2 * members).round(1)
        found = []
        for lift in (0.0, 0.5, 1.0, 2.0, 4.0):
            found.append(audit(*parted(scores + lift * members, members), delta=1e-5, bound=bound).epsilon_lower)
        assert found == sorted(found)


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores_in", "scores_out", "message"),
    [
        ([], [1.0], "scores_in is empty; expected at least one canary that was inserted.*holdout=0.5"),
        ([1.0], [], "scores_out is empty; expected at least one canary that was held out.*holdout=0.5"),
        ([1.0, float("nan")], [1.0], r"scores_in\[1\] is nan, and 1 of 2 are not finite"),
        ([1.0], [float("-inf"), 2.0], r"scores_out\[0\] is -inf.*diverged"),
        ([[1.0]], [1.0], r"scores_in is an array of shape \(1, 1\); expected a list of numbers"),
        (["high"], [1.0], r"scores_in\[0\] is 'high', of type str; expected a number"),
        ([1.0, "2"], [1.0], r"scores_in\[1\] is '2', of type str; expected a number"),
        (np.array(["1", "2"]), [1.0], r"scores_in\[0\] is .*'1'.*; expected a number"),
        ([1.0], [None], r"scores_out\[0\] is None, of type NoneType; expected a number"),
        ([1j], [1.0], r"scores_in\[0\] is 1j, of type complex; expected a number"),
        ([[1.0], [2.0, 3.0]], [1.0], r"scores_in is a list of 2; expected a list of numbers\.$"),
        ({1.0, 2.0}, [1.0], r"scores_in is a set of 2; expected a list of numbers\.$"),
        (torch.zeros(4, 1), [1.0], r"scores_in is an array of shape \(4, 1\); expected a list of numbers\. Flatten it"),
        (torch.tensor(1.0), [1.0], r"scores_in is an array of shape \(\); expected a list of numbers"),
        ([1.0] * 1000, [0.0] * 10, "scores_in has 1000 and scores_out 10: fair coins.*holdout=0.5"),
    ],
)
def test_scores_that_prove_nothing_are_refused(scores_in: Any, scores_out: Any, message: str) -> None:
    with pytest.raises(ScoreError, match=message):
        audit(scores_in, scores_out)


@pytest.mark.parametrize(
    "kind",
    [
        lambda scores: torch.tensor(scores, requires_grad=True),
        lambda scores: torch.tensor(scores, dtype=torch.bfloat16),
        lambda scores: [torch.tensor(score, requires_grad=True) for score in scores],
        lambda scores: [torch.tensor(score, dtype=torch.bfloat16) for score in scores],
        lambda scores: torch.tensor(scores).int(),
        lambda scores: np.array(scores, dtype=np.float16),
        lambda scores: tuple(map(Fraction, scores)),
    ],
)
def test_scores_may_come_as_a_model_gives_them(kind: Any) -> None:
    inside, outside = [3.0, 2.0, 5.0], [1.0, 0.0]
    assert audit(kind(inside), kind(outside)) == audit(inside, outside)
    assert auc(kind(inside), kind(outside)) == 1.0


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"delta is 1\.0; expected a number of at least 0 and below 1"):
        audit([1.0], [0.0], delta=1.0)
    with pytest.raises(ArgumentError, match=r"confidence is 95; expected a number above 0 and below 1"):
        audit([1.0], [0.0], confidence=95)
    with pytest.raises(ArgumentError, match=r"records is 0; expected an integer of at least 1"):
        audit([1.0], [0.0], records=0)
    with pytest.raises(ArgumentError, match=r"delta is 0\.0; expected a number above 0 with bound='gaussian'\."):
        audit([1.0], [0.0], bound="gaussian")
    with pytest.raises(ArgumentError, match=r"bound is 'tight'; expected .*one_run.*gaussian"):
        audit([1.0], [0.0], bound="tight")  # type: ignore[arg-type]


def test_a_result_survives_as_plain_values() -> None:
    found = audit([3.0, 2.0, 5.0], [1.0, 0.0], delta=1e-5)
    assert AuditResult.from_dict(found.to_dict()) == found
    gaussian = audit([3.0, 2.0, 5.0], [1.0, 0.0], delta=1e-5, bound="gaussian")
    assert AuditResult.from_dict(gaussian.to_dict()) == gaussian
    assert AuditResult.from_dict({**found.to_dict(), "assumption": "as an older version said it"}) == found
    assert (found.inserted, found.held_out, found.delta, found.confidence, found.records) == (3, 2, 1e-5, 0.95, 1)


@pytest.mark.parametrize(
    ("bound", "assumption"), [("one_run", "none: it holds for every"), ("gaussian", "trades off .* as a Gaussian does")]
)
def test_what_a_bound_assumes_goes_wherever_it_goes(bound: Any, assumption: str) -> None:
    found = audit([3.0, 2.0, 5.0], [1.0, 0.0], delta=np.float32(1e-5), bound=bound)
    said = json.loads(json.dumps(found.to_dict()))["assumption"]
    assert re.search(assumption, said)
    assert found.assumption == said
    assert said in repr(found)
