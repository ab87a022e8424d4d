"""`measure_exposure`: right where it is exact, honest where it is estimated."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError, BudgetError, ModelError, SecretError
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.walks import enumerate_leaves
from tests import oracle
from tests.cases import CASES, CHARACTERS, Case
from tests.toys import Constant, Recurrent, Table, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)
RANKS = (1, 10, 1_000, 100_000)


@cache
def million() -> tuple[SecretTree, dict[int, str]]:
    """A tree of 10^6 secrets, and the secrets of some ranks."""
    model = sharpened(Recurrent(CHARS.vocab_size, width=8), seed=5, scale=2.5, dtype=torch.float32)
    tree = SecretTree(model, SecretFormat("number ######"), CHARS)
    batches = list(enumerate_leaves(tree))
    costs = np.concatenate([leaves.costs for leaves in batches])
    paths = np.concatenate([leaves.paths for leaves in batches if len(leaves.costs)])
    order = np.argsort(costs)
    return tree, {rank: tree.text(tokens_of(paths[order[rank - 1]])) for rank in RANKS}


@pytest.mark.parametrize("method", ["auto", "exact"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_exposure_is_log_size_minus_log_rank(case: Case, method: str) -> None:
    tree = case.tree()
    texts = [case.format.render(i % case.format.size) for i in (5, 77, 1)]
    for text, estimate in zip(texts, measure_exposure(tree, texts, method=method), strict=True):
        rank = oracle.rank(text, case.costs)
        assert estimate.secret == text
        assert estimate.method == "exact"
        assert estimate.rank == rank
        assert estimate.bits == pytest.approx(math.log2(case.format.size / rank))
        assert estimate.low == estimate.high == estimate.bits
        assert estimate.log_perplexity == pytest.approx(case.costs[text])


class TestImportance:
    @pytest.mark.parametrize("rank", RANKS)
    def test_intervals_cover_the_exact_value_as_often_as_they_say(self, rank: int) -> None:
        """At least 90 of 100 seeds, at every rank; and the estimates are good, not just their intervals wide."""
        tree, secrets = million()
        (truth,) = measure_exposure(tree, [secrets[rank]], method="exact", budget=10**6)
        assert truth.rank == pytest.approx(rank, abs=2)  # float32: neighbours may swap
        assert truth.method == ("exact" if truth.low == truth.high else "counted")
        estimates = [
            measure_exposure(tree, [secrets[rank]], method="importance", samples=1024, seed=seed)[0]
            for seed in range(100)
        ]
        covered = sum(e.low - 1e-9 <= truth.high and truth.low <= e.high + 1e-9 for e in estimates)
        assert covered >= 90
        assert np.mean([abs(e.bits - truth.bits) for e in estimates if not e.is_bound] or [0.0]) < 0.3
        assert np.mean([e.high - e.low for e in estimates]) < 5.0

    def test_a_secret_that_is_easier_to_find_than_all_that_are_cheaper(self) -> None:
        """Few tokens fit on its own path, so that walks go there; what is cheaper hides among many equals."""

        def digits(prefix: str) -> list[float]:
            if prefix == "":
                return [0.099] * 10
            if "01111".startswith(prefix):
                return [0.03 if digit == 1 else 1e-9 for digit in range(10)]
            if len(prefix) < 4:
                return [0.0999] * 10
            hidden = {"3123": 4, "5812": 1, "7707": 0, "9424": 2, "2515": 1, "4666": 3, "6246": 8, "8135": 7}
            return [0.9 if hidden.get(prefix) == digit else 1e-7 for digit in range(10)]

        tree = SecretTree(Table(CHARS, digits), SecretFormat("n #####"), CHARS)
        (truth,) = measure_exposure(tree, ["n 01111"], method="exact")
        assert truth.rank == 9
        estimates = [
            measure_exposure(tree, ["n 01111"], method="importance", samples=64, seed=seed)[0] for seed in range(20)
        ]
        assert sum(e.low <= truth.bits + 1e-9 and truth.bits <= e.high + 1e-9 for e in estimates) >= 18

    def test_a_secret_of_rank_one_is_a_bound_until_all_that_could_be_cheaper_was_seen(self) -> None:
        tree, secrets = million()
        for seed in range(5):
            (few,) = measure_exposure(tree, [secrets[1]], method="importance", samples=512, seed=seed)
            assert few.is_bound
            assert few.bits == few.low < few.high == tree.bits
        (all_of_them,) = measure_exposure(tree, [secrets[1]], method="importance", samples=30_000)
        assert (all_of_them.method, all_of_them.bits, all_of_them.is_bound) == ("exact", tree.bits, False)

    def test_estimates_are_unbiased(self) -> None:
        tree, secrets = million()
        ranks = [
            measure_exposure(tree, [secrets[1000]], method="importance", samples=256, seed=seed)[0].rank
            for seed in range(60)
        ]
        assert np.mean(ranks) == pytest.approx(1000, abs=4 * np.std(ranks) / math.sqrt(60))

    def test_many_secrets_share_one_sample(self) -> None:
        tree, secrets = million()
        together = measure_exposure(tree, list(secrets.values()), method="importance")
        assert len({estimate.expansions for estimate in together}) == 1
        assert [estimate.secret for estimate in together] == list(secrets.values())
        for rank, estimate in zip(secrets, together, strict=True):
            assert estimate.low <= math.log2(10**6 / rank) + 0.01
            assert estimate.high >= math.log2(10**6 / rank) - 0.01

    def test_a_memory_limit_leaves_the_estimate_unbiased(self) -> None:
        tree, secrets = million()
        ranks = [
            measure_exposure(tree, [secrets[10]], method="importance", samples=64, seed=seed, memory=2000)[0].rank
            for seed in range(10)
        ]
        assert np.mean(ranks) == pytest.approx(10, abs=4 * np.std(ranks) / math.sqrt(10) + 0.5)


class TestAuto:
    def test_it_counts_exactly_where_the_count_fits_in_the_budget_and_estimates_the_rest(self) -> None:
        tree, secrets = million()
        easy, hard = measure_exposure(tree, [secrets[10], secrets[100_000]], budget=30_000)
        assert (easy.method, easy.rank) == ("exact", 10)
        assert hard.method == "importance"
        assert hard.low < math.log2(10) < hard.high

    def test_it_spends_no_more_than_the_walks_when_ranks_are_huge(self) -> None:
        tree, secrets = million()
        (auto,) = measure_exposure(tree, [secrets[100_000]], samples=512, budget=20_000)
        (importance,) = measure_exposure(tree, [secrets[100_000]], samples=512, method="importance")
        assert auto.method == "importance"
        assert auto.expansions == importance.expansions

    def test_with_a_large_budget_everything_is_exact(self) -> None:
        tree, secrets = million()
        estimates = measure_exposure(tree, list(secrets.values()), budget=10**6)
        assert {estimate.method for estimate in estimates} <= {"exact", "counted"}
        assert [estimate.rank for estimate in estimates] == pytest.approx(RANKS, abs=2)


class TestSampling:
    def test_it_ranks_among_uniform_references(self) -> None:
        tree, secrets = million()
        (estimate,) = measure_exposure(tree, [secrets[100_000]], method="sampling")
        assert estimate.method == "sampling"
        assert estimate.low < math.log2(10) < estimate.high
        assert not estimate.is_bound

    def test_a_secret_below_all_references_is_reported_as_a_bound(self) -> None:
        tree, secrets = million()
        (estimate,) = measure_exposure(tree, [secrets[1]], method="sampling")
        assert estimate.is_bound
        assert estimate.bits == estimate.low < math.log2(10**6) == estimate.high
        assert ">=" in str(estimate)

    def test_with_as_many_samples_as_secrets_it_is_exact(self) -> None:
        case = CASES[0]
        texts = [case.format.render(i) for i in (5, 77)]
        sampled = measure_exposure(case.tree(), texts, method="sampling")
        exact = measure_exposure(case.tree(), texts, method="exact")
        assert [(e.rank, e.method) for e in sampled] == [(e.rank, "exact") for e in exact]


def test_skew_normal_reports_its_fit() -> None:
    case = CASES[0]
    (estimate,) = measure_exposure(case.tree(), [case.format.render(5)], method="skewnormal")
    assert estimate.method == "skewnormal"
    assert estimate.low < estimate.bits < estimate.high
    assert 0 < (estimate.ks_statistic or 0) < 1
    assert estimate.ks_pvalue is not None


def test_results_stand_in_input_order_and_repeated_secrets_are_answered_twice() -> None:
    case = CASES[0]
    texts = [case.format.render(i) for i in (9, 3, 9)]
    estimates = measure_exposure(case.tree(), texts)
    assert [estimate.secret for estimate in estimates] == texts
    assert estimates[0] == estimates[2]


def test_a_model_that_ties_everything_exposes_nothing() -> None:
    tree = SecretTree(Constant(CHARS.vocab_size), SecretFormat("pin ####"), CHARS)
    for method in ("auto", "exact", "importance", "sampling"):
        (estimate,) = measure_exposure(tree, ["pin 1234"], method=method, samples=500)
        assert estimate.bits == pytest.approx(0.0, abs=0.2 if method == "importance" else 1e-9), method
        assert estimate.low == 0.0


def test_a_secret_the_model_holds_impossible_has_no_exposure() -> None:
    model = Constant(CHARS.vocab_size)
    with torch.no_grad():
        model.logits[CHARS.encode("7")[0]] = -math.inf
    tree = SecretTree(model, SecretFormat("pin ###"), CHARS)
    possible, impossible = measure_exposure(tree, ["pin 123", "pin 127"])
    assert impossible.rank == 1000
    assert impossible.bits == 0.0
    assert possible.rank == 9**3


@pytest.mark.parametrize("digits", [16, 40, 150])
def test_formats_of_any_size_can_be_measured(digits: int) -> None:
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), seed=0), SecretFormat("n " + "#" * digits), CHARS)
    (estimate,) = measure_exposure(tree, [tree.format.render(12345)], samples=64)
    assert 0 <= estimate.low <= estimate.bits <= estimate.high <= tree.bits
    assert all(map(math.isfinite, (estimate.low, estimate.bits, estimate.high)))
    (estimate,) = measure_exposure(tree, [tree.format.render(12345)], samples=64, method="sampling")
    assert all(map(math.isfinite, (estimate.low, estimate.bits, estimate.high)))


def test_a_format_beyond_floating_point_ranks_is_refused() -> None:
    tree = SecretTree(Constant(CHARS.vocab_size), SecretFormat("n " + "#" * 400), CHARS)
    with pytest.raises(ArgumentError, match=r"2\^1329 secrets; expected at most 2\^500"):
        measure_exposure(tree, [tree.format.render(5)])


def test_an_estimate_becomes_json() -> None:
    (estimate,) = measure_exposure(CASES[0].tree(), ["my pin is 123"])
    assert json.loads(json.dumps(estimate.to_dict()))["bits"] == estimate.bits


def test_the_same_seed_gives_the_same_answer() -> None:
    tree, secrets = million()
    first, again, other = (
        measure_exposure(tree, [secrets[1000]], method="importance", samples=128, seed=seed)[0].bits
        for seed in (1, 1, 2)
    )
    assert first == again != other


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"budget": 0}, "budget is 0; expected an integer of at least 1. It counts expansions"),
            ({"samples": 0}, "samples is 0"),
            ({"method": "guess"}, "method is 'guess'; expected one of 'auto', 'exact', 'importance'"),
            ({"confidence": 1.0}, "confidence is 1.0"),
            ({"memory": 0}, "memory is 0"),
        ],
    )
    def test_arguments_out_of_range_are_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            measure_exposure(CASES[0].tree(), ["my pin is 123"], **options)

    def test_one_text_instead_of_a_list(self) -> None:
        with pytest.raises(
            ArgumentError, match=r"secrets is 'my pin is 123'; expected a list of texts\. Write \['my pin is 123'\]"
        ):
            measure_exposure(CASES[0].tree(), "my pin is 123")

    def test_a_secret_that_does_not_fit(self) -> None:
        with pytest.raises(SecretError):
            measure_exposure(CASES[0].tree(), ["my pin is 12"])

    def test_an_exact_count_beyond_its_budget(self) -> None:
        tree, secrets = million()
        with pytest.raises(BudgetError, match="budget is 100 expansions"):
            measure_exposure(tree, [secrets[100_000]], method="exact", budget=100)

    def test_a_model_that_returns_nan(self) -> None:
        model = Constant(CHARS.vocab_size)
        tree = SecretTree(model, SecretFormat("pin ##"), CHARS)
        with torch.no_grad():
            model.logits.fill_(math.nan)
        with pytest.raises(ModelError, match="NaN or infinite logits"):
            measure_exposure(tree, ["pin 12"])

    def test_no_secrets_need_no_measurement(self) -> None:
        assert measure_exposure(CASES[0].tree(), []) == []
