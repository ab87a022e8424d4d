"""Which costs can be told apart: measured on the model that is asked, in its own precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import Rounding, count_ranks, enumerate_leaves, measure_rounding, score
from tests.cases import CHARACTERS
from tests.toys import Constant, Recurrent, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)


def tree_of(model: nn.Module, pattern: str = "pin ####") -> SecretTree:
    return SecretTree(model, SecretFormat(pattern), CHARS)


def rounding_of(tree: SecretTree) -> Rounding:
    return measure_rounding(tree, tree.paths([tree.format.render(7)]))


class Scaled(nn.Module):
    """Logits times a number, plus another one: what a temperature or a badly centred head does."""

    def __init__(self, inner: nn.Module, scale: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.inner, self.scale, self.shift = inner, scale, shift

    def forward(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        logits, state = self.inner(tokens, state)
        return logits * self.scale + self.shift, state


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [(torch.float64, 1e-12, 1e-9), (torch.float32, 1e-8, 1e-4), (torch.bfloat16, 1e-3, 0.3)],
    ids=str,
)
def test_it_follows_the_precision_of_the_model(dtype: torch.dtype, least: float, most: float) -> None:
    model = sharpened(Recurrent(CHARS.vocab_size, nn.GRU, width=64), seed=0, scale=2.0, dtype=dtype)
    assert least < rounding_of(tree_of(model)).bits < most


@pytest.mark.parametrize(("scale", "shift", "least"), [(20.0, 0.0, 1e-6), (1.0, 1e4, 1e-3)])
def test_it_follows_the_size_of_the_logits(scale: float, shift: float, least: float) -> None:
    inner = sharpened(Recurrent(CHARS.vocab_size, width=64), seed=0, scale=2.0, dtype=torch.float32)
    plain, changed = rounding_of(tree_of(inner)).bits, rounding_of(tree_of(Scaled(inner, scale, shift))).bits
    assert changed > max(2.0 * plain, least)


@pytest.mark.parametrize("shift", [0.0, 1e4])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_costs_in_batches_of_any_shape_differ_by_less(scale: float, shift: float) -> None:
    inner = sharpened(Recurrent(CHARS.vocab_size, width=64), seed=0, scale=2.0, dtype=torch.float32)
    model = Scaled(inner, scale, shift)
    rounding = rounding_of(tree_of(model))
    shapes = [
        {
            tuple(path): cost
            for leaves in enumerate_leaves(SecretTree(model, SecretFormat("pin ####"), CHARS, batch_size=rows))
            for path, cost in zip(leaves.paths.tolist(), leaves.costs.tolist(), strict=True)
        }
        for rows in (17, 1000)
    ]
    differences = [abs(shapes[0][path] - shapes[1][path]) for path in shapes[0]]
    assert max(differences) <= rounding.bits


def test_a_model_without_rounding_is_told_from_one_with() -> None:
    assert rounding_of(tree_of(Constant(CHARS.vocab_size))).repeatable
    assert not rounding_of(tree_of(sharpened(Recurrent(CHARS.vocab_size, width=64), seed=0))).repeatable


def test_secrets_whose_tokens_cost_the_same_cost_the_same_in_whatever_order() -> None:
    """Each digit has its own cost wherever it stands: permutations tie, at sums near 150 bits."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = nn.Parameter(torch.randn(CHARS.vocab_size, dtype=torch.float64) * 8 - 4)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.logits.expand(*tokens.shape, -1)

    torch.manual_seed(3)
    tree = tree_of(Bag(), "pin " + "#" * 12)
    digits = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    generator = np.random.default_rng(0)
    texts = ["pin " + "".join(map(str, generator.permutation(digits))) for _ in range(40)]
    costs = score(tree, texts).costs
    assert costs.min() > 100
    assert len(set(costs.tolist())) == 1


def test_what_a_model_masks_out_says_nothing_about_rounding() -> None:
    model = Constant(CHARS.vocab_size)
    with torch.no_grad():
        model.logits[CHARS.encode("7")[0]] = -1e9
    assert rounding_of(tree_of(model)).bits < 1e-6


def test_ties_are_an_interval_of_ranks() -> None:
    tree = tree_of(sharpened(Recurrent(CHARS.vocab_size), seed=1), "pin ##")
    texts = [tree.format.render(i) for i in range(100)]
    costs = score(tree, texts).costs
    wide = Rounding(bits=0.5, repeatable=False)
    ranks = count_ranks(tree, tree.paths(texts), costs, wide)
    for i, cost in enumerate(costs):
        others = np.delete(costs, i)
        assert ranks.fewest[i] == 1 + (others < cost - 0.5).sum()
        assert ranks.ranks[i] == 1 + (others <= cost).sum()
        assert ranks.most[i] == 1 + (others <= cost + 0.5).sum()


def test_a_count_that_was_cut_off_is_a_lower_bound_on_the_rank() -> None:
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), seed=1), SecretFormat("pin ####"), CHARS, batch_size=50)
    dear = max((tree.format.render(i) for i in range(0, 10_000, 371)), key=lambda text: score(tree, [text]).costs[0])
    paths, costs = tree.paths([dear]), score(tree, [dear]).costs
    whole = count_ranks(tree, paths, costs, Rounding(1e-9, False))
    cut = count_ranks(tree, paths, costs, Rounding(1e-9, False), budget=whole.expansions // 2)
    assert whole.cut is None
    assert cut.cut is not None
    assert cut.expansions <= whole.expansions // 2
    assert 1 < cut.fewest[0] < whole.fewest[0]


def test_the_walk_tells_how_far_its_own_costs_are_from_those_it_was_given() -> None:
    tree = tree_of(sharpened(Recurrent(CHARS.vocab_size), seed=1), "pin ##")
    text = "pin 42"
    paths, costs = tree.paths([text]), score(tree, [text]).costs
    assert count_ranks(tree, paths, costs, Rounding(0.1, False)).drift < 1e-9
    assert count_ranks(tree, paths, costs + 0.05, Rounding(0.1, False)).drift == pytest.approx(0.05)
    assert count_ranks(tree, paths, costs - 0.5, Rounding(0.1, False)).drift == math.inf
