"""Scoring many secrets over shared prefixes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_exposure import SecretTree
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.walks import score
from tests.cases import CASES, Case
from tests.toys import Recurrent


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


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 4096])
def test_every_secret_at_once_costs_what_it_costs_alone_and_every_beginning_is_read_once(
    case: Case, batch_size: int
) -> None:
    texts = list(case.costs)[:: max(1, len(case.costs) // 60)]
    tree = case.tree(batch_size=batch_size)
    scores = score(tree, [*texts, *reversed(texts)])
    expected = [case.costs[text] for text in texts]
    np.testing.assert_allclose(scores.costs, [*expected, *reversed(expected)], atol=1e-9)
    paths = [tokens_of(row) for row in tree.paths(texts)]
    assert scores.expansions == len({tuple(path[:length]) for path in paths for length in range(len(path))})


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = Recurrent(CASES[0].tokenizer.vocab_size).train(training)
    model.cell.eval()
    score(SecretTree(model, CASES[0].format, CASES[0].tokenizer), ["my pin is 123", "my pin is 124"])
    assert model.training is training
    assert model.drop.training is training
    assert not model.cell.training
    assert torch.is_grad_enabled()


def test_logits_that_are_not_finite_are_refused_also_where_a_secret_is_alone() -> None:
    model = Recurrent(CASES[0].tokenizer.vocab_size)
    (four,) = CASES[0].tokenizer.encode("4")
    with torch.no_grad():
        model.embed.weight[four] = float("nan")
    tree = SecretTree(model, CASES[0].format, CASES[0].tokenizer)
    assert np.isfinite(score(tree, ["my pin is 123", "my pin is 567"]).costs).all()
    for texts in (["my pin is 123", "my pin is 547"], ["my pin is 456", "my pin is 457"]):
        with pytest.raises(ModelError, match="NaN or infinite logits"):
            score(tree, texts)
