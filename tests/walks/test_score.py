"""Scoring many secrets over shared prefixes."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_exposure.errors import ArgumentError
from lightning_exposure.walks import score
from tests.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("memory", [1, 2**30])
def test_costs_come_in_input_order_whatever_the_memory(case: Case, memory: int) -> None:
    texts = [case.format.render(i % case.format.size) for i in (7, 3, 99, 3, 0, 42)]
    costs = score(case.tree(), texts, memory=memory).costs
    np.testing.assert_allclose(costs, [case.costs[text] for text in texts], atol=1e-9)


def test_a_common_beginning_is_read_once() -> None:
    case = CASES[0]  # three digits: root, then at most one node per distinct first digit and first two digits
    assert score(case.tree(), ["my pin is 123", "my pin is 124", "my pin is 129"]).expansions == 1 + 1 + 1
    assert score(case.tree(), ["my pin is 123", "my pin is 223"]).expansions == 1 + 2 + 2


def test_nothing_to_score_reads_nothing() -> None:
    scores = score(CASES[0].tree(), [])
    assert len(scores.costs) == 0
    assert scores.expansions == 0


def test_memory_must_be_positive() -> None:
    with pytest.raises(ArgumentError, match="memory is 0"):
        score(CASES[0].tree(), ["my pin is 123"], memory=0)
