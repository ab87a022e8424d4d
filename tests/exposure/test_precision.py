"""`precision`: as much work as the question needs, and an interval that still holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure.methods._auto import both, looks
from lightning_exposure.exposure.methods._sampling import GrowingReferences
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import (
    DistinctSampler,
    distinct_walks,
    enumerate_leaves,
    measure_rounding,
    score,
    uniform_walks,
)
from tests.cases import CHARACTERS
from tests.exposure.test_estimate import million
from tests.toys import Table

CHARS = CharTokenizer.from_text(CHARACTERS)


class TestGrowingSamples:
    def test_a_larger_sample_holds_the_smaller_one_and_costs_only_what_it_adds(self) -> None:
        tree, _ = million()
        sampler = DistinctSampler(tree, 1024, seed=3, bound=30.0)
        small, large = sampler.draw(128), sampler.draw(1024)
        assert set(map(tuple, small.paths.tolist())) <= set(map(tuple, large.paths.tolist()))
        assert small.paths.shape[1] == large.paths.shape[1] == 6
        at_once = distinct_walks(tree, 1024, seed=3, bound=30.0)
        assert small.expansions < large.expansions <= 1.1 * at_once.expansions
        assert large.threshold < small.threshold

    def test_every_size_is_unbiased(self) -> None:
        tree, _ = million()
        truth = sum(len(leaves.costs) for leaves in enumerate_leaves(tree, 28.0))
        totals: dict[int, list[float]] = {32: [], 128: [], 512: []}
        for seed in range(40):
            sampler = DistinctSampler(tree, 512, seed=seed, bound=28.0)
            for size, found in totals.items():
                found.append(float((1.0 / sampler.draw(size).inclusion).sum()))
        for found in totals.values():
            assert np.mean(found) == pytest.approx(truth, abs=4 * np.std(found) / math.sqrt(len(found)))

    def test_memory_limits_what_is_kept_and_changes_no_sample(self) -> None:
        tree, _ = million()
        free, tight = (DistinctSampler(tree, 256, seed=1, bound=30.0, memory=memory) for memory in (2**30, 200_000))
        for size in (64, 256):
            one, other = free.draw(size), tight.draw(size)
            assert len(one.costs) == len(other.costs)
            assert abs(one.threshold - other.threshold) < 1.0  # other batches, so other random numbers


class TestPrecision:
    @pytest.mark.parametrize("precision", [2.0, 0.5])
    def test_intervals_are_as_narrow_as_was_asked_and_hold(self, precision: float) -> None:
        tree, secrets = million()
        texts = list(secrets.values())
        truth = [math.log2(10**6 / rank) for rank in secrets]
        misses = 0
        for seed in range(5):
            estimates = measure_exposure(tree, texts, precision=precision, seed=seed)
            assert all(e.high - e.low <= precision for e in estimates)
            misses += sum(not e.low - 0.01 <= bits <= e.high + 0.01 for e, bits in zip(estimates, truth, strict=True))
        assert misses <= 2

    def test_a_coarser_question_costs_less(self) -> None:
        tree, secrets = million()
        costs = [
            measure_exposure(tree, [secrets[100_000]], precision=precision)[0].expansions
            for precision in (2.0, 1.0, 0.5, None)
        ]
        assert costs == sorted(costs)
        assert costs[0] < costs[-1] / 5

    def test_what_is_as_cheap_to_count_is_counted(self) -> None:
        """One secret that the model knows by heart, and one that it does not know: the first is counted at once."""

        def digits(prefix: str) -> list[float]:
            return [0.9 if "123456".startswith(f"{prefix}{digit}") else 0.01 for digit in range(10)]

        tree = SecretTree(Table(CHARS, digits), SecretFormat("n ######"), CHARS)
        known, _ = measure_exposure(tree, ["n 123456", "n 887799"], precision=2.0)
        assert (known.method, known.rank) == ("exact", 1)
        assert known.expansions < 5_000

    def test_samples_and_budget_are_caps(self) -> None:
        tree, secrets = million()
        (estimate,) = measure_exposure(tree, [secrets[100_000]], precision=0.01, samples=256, budget=100)
        assert estimate.high - estimate.low > 0.01
        assert estimate.expansions < 256 * 6 * 2 + 400

    @pytest.mark.parametrize("precision", [0.0, -1.0, math.nan, math.inf])
    def test_no_precision_at_all_is_refused(self, precision: float) -> None:
        tree, secrets = million()
        with pytest.raises(ArgumentError, match=r"precision is .*; expected a number above 0"):
            measure_exposure(tree, [secrets[1]], precision=precision)

    def test_the_error_of_all_looks_together_is_what_was_allowed(self) -> None:
        plan = looks(4096, 0.25, 0.04)
        assert sum(look.error for look in plan) == pytest.approx(0.04)
        assert plan[-1].samples == 4096


def rare_prefix() -> tuple[SecretTree, str, float]:
    """Everything is behind one beginning of ten thousand; the secret is elsewhere and a little more expensive."""

    def digits(prefix: str) -> list[float]:
        if len(prefix) < 4:
            return [0.1] * 10
        if prefix.startswith("7777"):
            return [0.0999] * 10
        if prefix.startswith("1234"):  # the secret's own way: each digit a little less likely than those below 7777
            return [0.09 if digit == 5 else 1e-7 for digit in range(10)]
        return [1e-7] * 10

    tree = SecretTree(Table(CHARS, digits), SecretFormat("n #########"), CHARS)
    return tree, "n 123455555", math.log2(10**9) - math.log2(10**5 + 1)


class TestARarePrefixThatHidesManySecrets:
    def test_auto_finds_out_and_its_interval_holds(self) -> None:
        tree, secret, truth = rare_prefix()
        for seed, precision in ((0, None), (1, None), (2, 0.25), (3, 0.25)):
            (estimate,) = measure_exposure(tree, [secret], samples=512, seed=seed, precision=precision)
            assert estimate.low - 1e-9 <= truth <= estimate.high + 1e-9, estimate

    def test_a_refuted_sample_is_replaced_by_a_uniform_one_and_the_count_that_was_cut_off(self) -> None:
        tree, secret, truth = rare_prefix()
        estimates = [measure_exposure(tree, [secret], samples=512, budget=16_000, seed=seed)[0] for seed in range(4)]
        assert all(e.low - 1e-9 <= truth <= e.high + 1e-9 for e in estimates)
        refuted = [e for e in estimates if e.method == "sampling"]
        assert refuted
        for estimate in refuted:
            assert "had promised fewer" in estimate.rests_on
            assert estimate.high < tree.bits - 1  # the count that was cut off had found some
            assert estimate.is_bound

    def test_importance_alone_says_that_it_cannot_know(self) -> None:
        tree, secret, _ = rare_prefix()
        (estimate,) = measure_exposure(tree, [secret], method="importance", samples=512)
        assert "which a sample alone cannot see" in estimate.rests_on


class TestThePointIsNotTheCeiling:
    def test_a_sample_with_nothing_cheaper_reports_a_bound(self) -> None:
        tree, secrets = million()
        bounds = 0
        for seed in range(20):
            (estimate,) = measure_exposure(tree, [secrets[1000]], method="importance", samples=2, seed=seed)
            if estimate.is_bound:
                bounds += 1
                assert estimate.bits == estimate.low < estimate.high
            assert estimate.bits < tree.bits
        assert bounds

    def test_every_estimate_says_what_it_rests_on(self) -> None:
        tree, secrets = million()
        for method in ("auto", "importance", "sampling", "skewnormal"):
            (estimate,) = measure_exposure(tree, [secrets[1000]], method=method, samples=256)
            assert estimate.rests_on, method


class TestWalksAndReferencesTogether:
    def estimate(self, low: float, bits: float, high: float, method: str) -> ExposureEstimate:
        return ExposureEstimate(
            "s", bits, low, high, method, 2.0 ** (10 - bits), 5.0, 10.0, False, 0.95, 9, rests_on=method
        )

    def test_both_intervals_hold_and_the_narrower_one_gives_the_point(self) -> None:
        together = both(self.estimate(0.0, 1.0, 2.5, "importance"), self.estimate(1.2, 1.3, 1.4, "sampling"))
        assert (together.low, together.bits, together.high, together.method) == (1.2, 1.3, 1.4, "sampling")
        assert together.rank == pytest.approx(2.0**8.7)
        overlapping = both(self.estimate(1.0, 1.1, 1.5, "importance"), self.estimate(1.3, 1.6, 2.0, "sampling"))
        assert (overlapping.low, overlapping.bits, overlapping.high) == (1.3, 1.3, 1.5)
        assert overlapping.rank == pytest.approx(2.0**8.7)

    def test_where_they_contradict_each_other_the_uniform_sample_is_believed(self) -> None:
        together = both(self.estimate(5.0, 5.1, 5.2, "importance"), self.estimate(1.2, 1.3, 1.4, "sampling"))
        assert (together.low, together.bits, together.high) == (1.2, 1.3, 1.4)
        assert "contradict" in together.rests_on

    def test_references_that_grow_are_those_of_one_draw(self) -> None:
        tree, secrets = million()
        texts = [secrets[10]]
        paths = tree.paths(texts)
        rounding = measure_rounding(tree, paths)
        case = TreeCase(texts, score(tree, texts).costs, rounding, 0, 1, 300, 0, 0.95, tree, paths, 0.25, 2**30, None)
        growing = GrowingReferences(case, seed=4)
        small, large = growing.draw(100), growing.draw(300)
        np.testing.assert_array_equal(small.costs, large.costs[:100])
        assert large.secrets == uniform_walks(tree, 300, seed=4, exclude=texts).secrets
        assert growing.draw(300).expansions == large.expansions

    def test_a_secret_in_the_middle_of_all_others_needs_few_expansions(self) -> None:
        tree, _ = million()
        middle = tree.format.render(424_242)
        (rough,) = measure_exposure(tree, [middle], precision=0.5)
        (fine,) = measure_exposure(tree, [middle])
        assert rough.high - rough.low <= 0.5
        assert rough.low <= fine.high
        assert fine.low <= rough.high
        assert rough.expansions < fine.expansions / 2
