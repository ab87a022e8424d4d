"""Exact enumeration, the pruned count, and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters import RecurrentAdapter
from lightning_exposure.errors import ArgumentError, BudgetError
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import Rounding, count_ranks, enumerate_leaves, measure_rounding, score
from tests import oracle
from tests.cases import CASES, CHARACTERS, FLOAT32, Case
from tests.toys import Constant, Recurrent, sharpened

DOUBLE = Rounding(bits=1e-9, repeatable=False)


@pytest.mark.parametrize("case", [*CASES, FLOAT32], ids=str)
def test_every_rank_is_the_oracles(case: Case) -> None:
    tree = case.tree(batch_size=64)
    texts = list(case.costs)[:: 1 if case.format.size <= 100 else 7]
    paths = tree.paths(texts)
    rounding = measure_rounding(tree, paths)
    ranks = count_ranks(tree, paths, score(tree, texts).costs, rounding)
    assert ranks.fewest == [oracle.rank(text, case.costs, -rounding.bits) for text in texts]
    assert ranks.most == [oracle.rank(text, case.costs, rounding.bits) for text in texts]
    assert all(few <= rank <= most for few, rank, most in zip(ranks.fewest, ranks.ranks, ranks.most, strict=True))
    if case is not FLOAT32:
        assert ranks.fewest == ranks.most


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bound_keeps_exactly_what_costs_no_more(case: Case) -> None:
    bound = float(np.median(list(case.costs.values()))) + 1e-9  # a secret may stand right on it
    found = np.concatenate([leaves.costs for leaves in enumerate_leaves(case.tree(), bound)])
    expected = sorted(cost for cost in case.costs.values() if cost <= bound)
    np.testing.assert_allclose(np.sort(found), expected, atol=1e-9)


def test_pruning_reads_far_fewer_nodes_than_there_are_secrets() -> None:
    tree = CASES[0].tree()
    cheapest = min(CASES[0].costs, key=CASES[0].costs.__getitem__)
    ranks = count_ranks(tree, tree.paths([cheapest]), score(tree, [cheapest]).costs, DOUBLE)
    assert ranks.ranks == [1]
    assert ranks.expansions < 1 + 10 + 100


def test_equal_costs_all_count_and_the_secret_itself_once() -> None:
    tokenizer = CharTokenizer.from_text(CHARACTERS)
    tree = SecretTree(Constant(tokenizer.vocab_size), SecretFormat("pin ###"), tokenizer)
    texts = ["pin 000", "pin 500", "pin 999"]
    paths = tree.paths(texts)
    ranks = count_ranks(tree, paths, score(tree, texts).costs, measure_rounding(tree, paths))
    assert ranks.fewest == ranks.most == ranks.ranks == [1000, 1000, 1000]


@pytest.mark.parametrize("error", [-1e-4, 1e-4])
def test_the_secret_is_counted_once_even_if_its_own_cost_came_out_differently(error: float) -> None:
    # As if the secret had been scored in a batch of another shape, with an absurdly large rounding error.
    case = CASES[0]
    tree = case.tree()
    texts = sorted(case.costs, key=case.costs.__getitem__)[:3]
    costs = score(tree, texts).costs
    assert min(np.diff(costs)) > 1e-3
    assert count_ranks(tree, tree.paths(texts), costs + error, DOUBLE).ranks == [1, 2, 3]


class _Watched:
    """Passes everything on, and notes the largest batch and how many rows of states are alive."""

    def __init__(self, inner: RecurrentAdapter) -> None:
        self._inner = inner
        self.largest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def start(self, tokens: Sequence[int]) -> Any:
        return self._inner.start(tokens)

    def step(self, state: Any, tokens: Tensor) -> Any:
        self.largest = max(self.largest, len(tokens))
        return self._inner.step(state, tokens)


def test_memory_bounds_the_blocks_and_changes_no_result() -> None:
    tokenizer = CharTokenizer.from_text(CHARACTERS)
    watched = _Watched(RecurrentAdapter(sharpened(Recurrent(tokenizer.vocab_size), seed=0)))
    tree = SecretTree(watched, SecretFormat("pin ####"), tokenizer)  # type: ignore[arg-type]
    all_at_once = np.concatenate([leaves.costs for leaves in enumerate_leaves(tree)])
    assert watched.largest == 1000
    watched.largest = 0
    limit = 20 * tree.row_bytes() * (tree.automaton.depth + 2)
    bounded = np.concatenate([leaves.costs for leaves in enumerate_leaves(tree, memory=limit)])
    assert watched.largest == 20
    np.testing.assert_allclose(np.sort(bounded), np.sort(all_at_once), atol=1e-9)


def test_a_budget_that_does_not_suffice_is_an_error_with_the_remedy() -> None:
    with pytest.raises(BudgetError, match=r"budget is 50 expansions.*method='importance'"):
        list(enumerate_leaves(CASES[0].tree(batch_size=10), budget=50))
    with pytest.raises(ArgumentError, match="budget is 0"):
        list(enumerate_leaves(CASES[0].tree(), budget=0))


def test_progress_is_told_how_far_the_walk_is() -> None:
    seen: list[tuple[int, int, float]] = []
    batches = list(enumerate_leaves(CASES[0].tree(batch_size=10), progress=lambda *how_far: seen.append(how_far)))
    expansions, open_nodes, best = zip(*seen, strict=True)
    assert list(expansions) == sorted(expansions)
    assert expansions[-1] == batches[-1].expansions == 1 + 10 + 100
    assert open_nodes[0] == 10
    assert open_nodes[-1] == 0
    assert best[0] == math.inf
    assert best[-1] == min(cost for batch in batches for cost in batch.costs)
