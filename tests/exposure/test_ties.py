"""Ranks where costs cannot be told apart: an interval, and "exact" only where both of its ends are the same."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure.methods._exact import count
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import Rounding, score
from tests.cases import CHARACTERS
from tests.toys import Recurrent, sharpened
from tests.walks.test_rounding import Scaled

CHARS = CharTokenizer.from_text(CHARACTERS)
PIN = SecretFormat("pin ####")


class Untrained(nn.Module):
    """A GRU as PyTorch makes it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARS.vocab_size, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, CHARS.vocab_size)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        features, state = self.cell(self.embed(tokens), state)
        return self.out(features), state


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_in_half_precision_what_is_proven_cheapest_can_be_of_rank_one(seed: int, dtype: torch.dtype) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Untrained().to(dtype)
    tree = SecretTree(model, PIN, CHARS)
    best = extract(tree).candidates[0].text
    (estimate,) = measure_exposure(tree, [best])
    assert estimate.high == tree.bits
    assert (estimate.method == "exact") == (estimate.low == estimate.high)
    assert estimate.rank <= 3
    assert estimate.low > tree.bits - 5


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (20.0, 0.0), (1.0, 1e4)])
def test_the_interval_holds_what_one_pass_per_secret_says(scale: float, shift: float) -> None:
    model = Scaled(sharpened(Recurrent(CHARS.vocab_size, width=64), 0, 2.0, dtype=torch.float32), scale, shift)
    tree = SecretTree(model, SecretFormat("pin ###"), CHARS)
    texts = [tree.format.render(i) for i in range(1000)]
    with torch.no_grad():
        logits = model(torch.tensor([CHARS.encode(text) for text in texts]))[0].double().log_softmax(-1)
    costs = np.zeros(1000)
    for position in range(4, 7):
        tokens = torch.tensor([CHARS.encode(text)[position] for text in texts])
        costs -= logits[torch.arange(1000), position - 1, tokens].numpy() / math.log(2.0)
    for i, estimate in zip(range(0, 1000, 9), measure_exposure(tree, texts[::9]), strict=True):
        truth = tree.bits - math.log2((costs <= costs[i]).sum())
        assert estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        assert (estimate.method == "exact") == (estimate.low == estimate.high)
        assert estimate.method in ("exact", "counted")


def test_groups_of_equal_secrets_have_one_rank() -> None:
    """Costs of 150 bits whose parts come in another order: equal, whatever the sums would do."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(0)
            self.logits = nn.Parameter(torch.randn(CHARS.vocab_size, generator=generator, dtype=torch.float64) * 30)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.logits.expand(*tokens.shape, -1)

    tree = SecretTree(Bag(), PIN, CHARS)
    group = ["pin 1234", "pin 4321", "pin 2143", "pin 3412", "pin 1324"]
    estimates = measure_exposure(tree, group)
    assert score(tree, group).costs.min() > 100
    assert {estimate.method for estimate in estimates} == {"exact"}
    assert len({estimate.rank for estimate in estimates}) == 1


def test_a_count_that_sees_more_rounding_than_was_measured_is_done_again_with_wider_ties() -> None:
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 1), SecretFormat("pin ###"), CHARS)
    texts = ["pin 123"]
    case = TreeCase(
        tree=tree,
        secrets=texts,
        paths=tree.paths(texts),
        costs=score(tree, texts).costs + 0.01,  # as if it had been scored in another shape
        rounding=Rounding(1e-6, repeatable=True),
        expansions=0,
        budget=10_000,
        samples=1,
        precision=None,
        seed=0,
        confidence=0.95,
        memory=2**30,
        progress=None,
    )
    widened, ranks = count(case)
    assert widened.rounding.bits == pytest.approx(0.04)
    assert not widened.rounding.repeatable
    right, _ = count(replace(case, costs=case.costs - 0.01))
    assert right.rounding == case.rounding
    truth = 1 + sum(score(tree, [tree.format.render(i) for i in range(1000)]).costs < case.costs[0] - 0.01 - 1e-9)
    assert ranks.fewest[0] <= truth <= ranks.most[0]
