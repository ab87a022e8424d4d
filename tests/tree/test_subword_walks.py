"""Every walk over a subword tree agrees with the oracle: encode each candidate, one full forward pass for each."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.walks import (
    Rounding,
    beam,
    best_first,
    count_ranks,
    distinct_walks,
    enumerate_leaves,
    log_weights,
    model_walks,
    score,
    uniform_walks,
)
from tests.tokenization.subword_models import KINDS, oracle_costs, shared_tokens
from tests.toys import Recurrent, sharpened

THOUSAND = "my pin is ###"
DASHED = "ssn ##-## end"
HUNDRED_THOUSAND = "my code is #####"


class Case:
    """A tokenizer, a format, a small model, and what the oracle says."""

    def __init__(self, kind: str, pattern: str) -> None:
        self.tokenizer = KINDS[kind]()
        self.format = SecretFormat(pattern)
        size = self.tokenizer.get_vocab_size()
        # In float64 ranks can be compared exactly; the largest formats are quicker in float32.
        dtype = torch.float64 if self.format.size <= 10_000 else torch.float32
        self.model = sharpened(Recurrent(size, width=8), seed=3, scale=2.0, dtype=dtype)
        self.tree = SecretTree(self.model, self.format, self.tokenizer)
        self.costs = oracle_costs(self.model, self.format, self.tokenizer, len(self.tree.spelling.root))
        self.sorted = np.sort(list(self.costs.values()))

    def rank(self, text: str, slack: float = 0.0) -> int:
        """How many secrets cost at most as much as this one, or a slack more."""
        return int(np.searchsorted(self.sorted, self.costs[text] + 1e-9 + slack, side="right"))

    def at_rank(self, rank: int) -> str:
        """The secret of a rank."""
        return sorted(self.costs, key=self.costs.__getitem__)[rank - 1]


@cache
def case(kind: str, pattern: str) -> Case:
    return Case(kind, pattern)


every_kind = pytest.mark.parametrize("kind", KINDS)
small = pytest.mark.parametrize("pattern", [THOUSAND, DASHED])


def found_by(tree: SecretTree, **options: Any) -> dict[str, float]:
    """All secrets that an enumeration comes to; none may come twice."""
    found: dict[str, float] = {}
    for leaves in enumerate_leaves(tree, **options):
        for path, cost in zip(leaves.paths, leaves.costs.tolist(), strict=True):
            text = tree.text(tokens_of(path))
            assert text not in found
            found[text] = cost
    return found


def assert_close(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    assert max((abs(found[text] - expected[text]) for text in found), default=0.0) < 1e-3


@every_kind
@small
def test_the_tree_begins_where_all_candidates_share_a_boundary(kind: str, pattern: str) -> None:
    a = case(kind, pattern)
    shared = shared_tokens(a.tokenizer, a.format)
    # Where equal spellings cannot be told apart before the end, the tree may begin a token earlier.
    assert len(a.tree.spelling.root) == shared if a.tree.spelling.exact else len(a.tree.spelling.root) <= shared


@every_kind
@small
def test_every_secret_stands_once_in_the_tree_at_the_cost_the_oracle_gives(kind: str, pattern: str) -> None:
    a = case(kind, pattern)
    assert_close(found_by(a.tree), a.costs)


@every_kind
@pytest.mark.slow
def test_a_hundred_thousand_secrets_each_once_at_the_oracles_cost(kind: str) -> None:
    a = case(kind, HUNDRED_THOUSAND)
    assert_close(found_by(a.tree), a.costs)
    texts = [a.at_rank(rank) for rank in (1, 2, 500, 50_000, 100_000)]
    ranks = count_ranks(a.tree, a.tree.paths(texts), score(a.tree, texts).costs, Rounding(1e-9, False)).ranks
    for text, rank in zip(texts, ranks, strict=True):
        # Sums in float32 differ in the last digits from batch to batch.
        assert a.rank(text, -1e-4) <= rank <= a.rank(text, 1e-4)
    best = best_first(a.tree, top_k=3)
    assert best.ended_by == "proof"
    assert [a.tree.text(tokens_of(path)) for path in best.paths] == [a.at_rank(rank) for rank in (1, 2, 3)]


@every_kind
@small
def test_scoring_gives_the_oracles_costs(kind: str, pattern: str) -> None:
    a = case(kind, pattern)
    texts = a.format.sample(200, seed=1)
    np.testing.assert_allclose(score(a.tree, texts).costs, [a.costs[text] for text in texts], atol=1e-3)
    sample = uniform_walks(a.tree, 300, seed=2)
    np.testing.assert_allclose(sample.costs, [a.costs[text] for text in sample.secrets], atol=1e-3)


@every_kind
@small
def test_pruned_counts_give_the_oracles_ranks(kind: str, pattern: str) -> None:
    a = case(kind, pattern)
    texts = [a.at_rank(rank) for rank in (1, 7, 100, a.format.size // 2, a.format.size)]
    ranks = count_ranks(a.tree, a.tree.paths(texts), score(a.tree, texts).costs, Rounding(1e-9, False)).ranks
    assert ranks == [a.rank(text) for text in texts]
    bound = a.costs[texts[2]]
    assert_close(found_by(a.tree, bound=bound + 1e-4), {t: c for t, c in a.costs.items() if c <= bound + 1e-4})


@every_kind
@small
def test_searches_find_the_oracles_best_secrets(kind: str, pattern: str) -> None:
    a = case(kind, pattern)
    expected = [a.at_rank(rank) for rank in (1, 2, 3)]
    proven = best_first(a.tree, top_k=3)
    assert proven.ended_by == "proof"
    wide = beam(a.tree, top_k=3, width=a.format.size)
    for found in (proven, wide):
        assert [a.tree.text(tokens_of(path)) for path in found.paths] == expected
        np.testing.assert_allclose(found.costs, [a.costs[text] for text in expected], atol=1e-3)
    assert extract(a.tree, "brute_force").candidates[0].text == expected[0]
    known = expected[0][: len(a.format.prompt) + 1]
    of_the_rest = [text for text in sorted(a.costs, key=a.costs.__getitem__) if text.startswith(known)]
    assert extract(a.tree, known=known, top_k=5).candidates[4].text == of_the_rest[4]


@every_kind
def test_walks_that_follow_the_model_end_at_secrets_with_the_probability_they_say(kind: str) -> None:
    """The weights 1/q of the walks to any set of secrets add up to its size, on average; walks that die weigh zero."""
    a = case(kind, THOUSAND)
    walks = model_walks(a.tree, 20_000, seed=5, temperatures=(1.0, 3.0, math.inf))
    weights = np.where(walks.complete, np.exp(-walks.log_probabilities), 0.0)
    for limit in np.quantile(a.sorted, [0.05, 0.3, 1.0]) + 1e-6:
        mine = weights * (walks.costs <= limit)
        error = mine.std() / math.sqrt(len(mine))
        assert mine.mean() == pytest.approx((a.sorted <= limit).sum(), abs=4.5 * error)
    texts = {a.tree.text(tokens_of(path)) for path in walks.paths[walks.complete]}
    assert texts <= a.costs.keys()


@every_kind
@pytest.mark.parametrize("quantile", [0.01, 0.2, 1.0])
def test_samples_without_replacement_are_unbiased(kind: str, quantile: float) -> None:
    a = case(kind, THOUSAND)
    bound = float(np.quantile(a.sorted, quantile)) + 1e-4
    counts = []
    for seed in range(60):
        walks = distinct_walks(a.tree, 40, seed=seed, bound=bound)
        np.testing.assert_allclose(
            walks.inclusion_of(log_weights(a.tree, walks.paths, bound=bound)), walks.inclusion, rtol=1e-3
        )
        counts.append(float((1 / walks.inclusion).sum()))
    error = np.std(counts, ddof=1) / math.sqrt(len(counts))
    assert np.mean(counts) == pytest.approx((a.sorted <= bound).sum(), abs=4.5 * error + 1e-9)


@every_kind
def test_importance_intervals_cover_the_oracles_exposure_as_often_as_they_say(kind: str) -> None:
    a = case(kind, DASHED)
    texts = [a.at_rank(1 + round(rank)) for rank in np.geomspace(1, a.format.size - 1, 50) - 1]
    texts = list(dict.fromkeys(texts))
    assert len(texts) >= 40
    covered = 0
    for seed, text in enumerate(texts):
        (estimate,) = measure_exposure(a.tree, [text], method="importance", samples=128, seed=seed)
        covered += estimate.low - 1e-9 <= math.log2(a.format.size / a.rank(text)) <= estimate.high + 1e-9
    assert covered >= 0.95 * len(texts) - 3 * math.sqrt(0.95 * 0.05 * len(texts))


@every_kind
@pytest.mark.parametrize("method", ["auto", "exact"])
def test_exposure_is_the_oracles(kind: str, method: str) -> None:
    a = case(kind, THOUSAND)
    for text in a.format.sample(20, seed=4):
        (estimate,) = measure_exposure(a.tree, [text], method=method)
        assert estimate.method == "exact"
        assert estimate.rank == a.rank(text)
        assert estimate.log_perplexity == pytest.approx(a.costs[text], abs=1e-3)
