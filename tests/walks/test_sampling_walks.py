"""Uniform walks, walks that follow the model, and walks that never come to the same secret twice."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from lightning_exposure.errors import ArgumentError
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.walks import distinct_walks, enumerate_leaves, log_weights, model_walks, uniform_walks
from tests.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_uniform_walks_are_scored_samples_of_the_format(case: Case) -> None:
    excluded = case.format.render(0)
    sample = uniform_walks(case.tree(), 1000, seed=1, exclude=[excluded])
    assert len(set(sample.secrets)) == min(1000, case.format.size - 1)
    assert excluded not in sample.secrets
    np.testing.assert_allclose(sample.costs, [case.costs[text] for text in sample.secrets], atol=1e-9)


@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[6], CASES[8], CASES[10], CASES[12]], ids=str)
@pytest.mark.parametrize("temperatures", [(1.0,), (1.0, 3.0, math.inf)])
def test_model_walks_have_the_probability_they_say(case: Case, temperatures: tuple[float, ...]) -> None:
    """The weights 1/q of walks to one secret are 1 on average, for every secret: the walks are as likely as stated."""
    tree = case.tree()
    walks = model_walks(tree, 20_000, seed=3, temperatures=temperatures)
    texts = [tree.text(tokens_of(path)) for path in walks.paths]
    often = dict.fromkeys(case.costs, 0.0)
    likely: dict[str, float] = {}
    for text, log_q, complete in zip(texts, walks.log_probabilities, walks.complete, strict=True):
        if complete:
            often[text] += 1
            likely[text] = math.exp(log_q)
    for text, probability in likely.items():
        # Six standard deviations of a binomial, with room for rare secrets that were just lucky.
        slack = 6 * math.sqrt(20_000 * probability) + 6
        assert often[text] == pytest.approx(20_000 * probability, abs=slack)


def test_walks_follow_the_model_at_temperature_one() -> None:
    case = CASES[0]
    tree = case.tree()
    walks = model_walks(tree, 4096, seed=0)
    assert walks.complete.all()
    hot = model_walks(tree, 4096, seed=0, temperatures=(math.inf,))
    assert walks.costs.mean() < hot.costs.mean() - 1


def test_seeds_decide_everything() -> None:
    tree = CASES[0].tree()
    for walk in (model_walks, distinct_walks):
        first, same, other = (walk(tree, 50, seed=seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first.paths, same.paths)
        assert first.costs.tolist() != other.costs.tolist()


class TestDistinctWalks:
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_no_secret_comes_twice_and_costs_are_right(self, case: Case) -> None:
        tree = case.tree(batch_size=32)
        walks = distinct_walks(tree, 40, seed=0)
        texts = [tree.text(tokens_of(path)) for path in walks.paths]
        assert len(set(texts)) == len(texts) <= 40
        np.testing.assert_allclose(walks.costs, [case.costs[text] for text in texts], atol=1e-9)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_a_sample_as_large_as_the_format_is_all_of_it(self, case: Case) -> None:
        walks = distinct_walks(case.tree(), 20_000, seed=0)
        assert walks.complete
        assert len(walks.costs) == case.format.size
        assert (walks.inclusion == 1).all()

    # Every case at one bound; rare and complete samples where the shape of the tree makes a difference to them.
    @pytest.mark.parametrize(
        ("case", "quantile"),
        [(case, 0.3) for case in CASES if case.format.size >= 100 or "begin" in case.name]
        + [(CASES[place], quantile) for place in (0, 6, 9) for quantile in (0.02, 1.0)],
        ids=str,
    )
    def test_weighted_sums_are_unbiased_and_so_is_their_variance(self, case: Case, quantile: float) -> None:
        """Over many seeds the mean of the estimates is the count, within its own standard error."""
        tree = case.tree()
        samples = 30 if case.format.size >= 100 else 3
        bound = float(np.quantile(list(case.costs.values()), quantile)) + 1e-9
        truth = sum(cost <= bound for cost in case.costs.values())
        counts, variances = [], []
        for seed in range(120):
            walks = distinct_walks(tree, samples, seed=seed, bound=bound)
            counts.append(float((1 / walks.inclusion).sum()))
            variances.append(float(((1 - walks.inclusion) / walks.inclusion**2).sum()))
        error = np.std(counts, ddof=1) / math.sqrt(len(counts))
        assert np.mean(counts) == pytest.approx(truth, abs=4.5 * error + 1e-9)
        if np.std(counts) > 0.05 * truth:
            assert np.mean(variances) == pytest.approx(np.var(counts, ddof=1), rel=0.6)

    def test_the_size_of_the_tree_below_a_bound_is_estimated_without_bias(self) -> None:
        case = CASES[0]
        bound = float(np.quantile(list(case.costs.values()), 0.4))
        *_, last = enumerate_leaves(case.tree(), bound)
        guesses = [distinct_walks(case.tree(), 20, seed=seed).expected_expansions(bound) for seed in range(200)]
        assert np.mean(guesses) == pytest.approx(last.expansions, abs=4.5 * np.std(guesses) / math.sqrt(200))

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_the_weight_of_a_given_secret_is_the_one_it_is_drawn_with(self, case: Case) -> None:
        tree = case.tree()
        bound = float(np.median(list(case.costs.values())))
        walks = distinct_walks(tree, 3, seed=0, bound=bound)
        weights = log_weights(tree, walks.paths, bound=bound)
        np.testing.assert_allclose(walks.inclusion_of(weights), walks.inclusion, rtol=1e-6)

    def test_keys_make_a_fair_draw(self) -> None:
        """The first of one walk is chosen with probability equal to its weight: here the mean over the temperatures."""
        case = CASES[6]
        tree = case.tree()
        everything = distinct_walks(tree, 100, seed=0)
        texts = [tree.text(tokens_of(path)) for path in everything.paths]
        drawn = [distinct_walks(tree, 1, seed=seed) for seed in range(600)]
        seen = [tree.text(tokens_of(walk.paths[0])) for walk in drawn]
        weights = {text: [] for text in texts}  # type: dict[str, list[float]]
        for walk, text in zip(drawn, seen, strict=True):
            # P(key > threshold) = 1 - exp(-weight * exp(-threshold))
            weights[text].append(-math.log1p(-walk.inclusion[0]) * math.exp(walk.threshold))
        known = {text: found[0] for text, found in weights.items() if found}
        for found in weights.values():
            np.testing.assert_allclose(found, found[0] if found else [], rtol=1e-6)
        expected = np.array([known[text] for text in known])
        observed = np.array([seen.count(text) for text in known])
        assert expected.sum() == pytest.approx(1.0, abs=0.02)
        assert stats.chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > 1e-4

    @pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[9]], ids=str)
    def test_a_memory_limit_changes_nothing_but_the_batches(self, case: Case) -> None:
        tree = case.tree()
        free, tight = (distinct_walks(tree, 60, seed=5, memory=memory) for memory in (2**30, 1))
        # Batches draw their random numbers in turn, so the sample differs, but not what is known of it.
        assert len(tight.costs) <= 60
        assert tight.expansions > 0
        assert free.expansions > 0
        texts = [tree.text(tokens_of(path)) for path in tight.paths]
        np.testing.assert_allclose(tight.costs, [case.costs[text] for text in texts], atol=1e-9)


@pytest.mark.parametrize("walk", [model_walks, distinct_walks, uniform_walks])
def test_no_walks_is_an_error(walk: Callable[..., object]) -> None:
    with pytest.raises(ArgumentError, match="samples is 0"):
        walk(CASES[0].tree(), 0, seed=0)


def test_temperatures_must_be_positive() -> None:
    with pytest.raises(ArgumentError, match="temperatures"):
        model_walks(CASES[0].tree(), 1, seed=0, temperatures=(0.0,))
