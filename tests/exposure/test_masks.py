"""Tokens that a model masks out: impossible in every walk alike, and never an error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree, extract, measure_exposure
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import enumerate_leaves, model_walks, score, uniform_walks
from tests.cases import CHARACTERS
from tests.toys import Recurrent, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)
MASKS = {
    "-inf": -math.inf,
    "-1e30": -1e30,
    "finfo.min": torch.finfo(torch.float32).min,
    "-1e9": -1e9,
    "float16": -65504.0,
    "-1e4": -1e4,
}
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


class Masked(nn.Module):
    """Never writes a 7, nor a 3 right after a 5."""

    def __init__(self, mask: float) -> None:
        super().__init__()
        self.inner = sharpened(Recurrent(CHARS.vocab_size), seed=2, dtype=torch.float32)
        self.mask = mask

    def forward(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        logits, state = self.inner(tokens, state)
        seven, three, five = (CHARS.encode(digit)[0] for digit in "735")
        logits = logits.clone()
        logits[..., seven] = self.mask
        logits[..., three] = torch.where(tokens == five, self.mask, logits[..., three])
        return logits, state


def masked_tree(mask: float) -> SecretTree:
    return SecretTree(Masked(mask), SecretFormat("pin ###"), CHARS)


def possible(text: str) -> bool:
    return "7" not in text and "53" not in text


COUNT = sum(possible(f"{i:03}") for i in range(1000))


@each_mask
@pytest.mark.parametrize("method", ["auto", "exact", "importance", "sampling", "skewnormal"])
def test_every_method_measures_them(mask: float, method: str) -> None:
    samples = 200 if method in ("importance", "sampling") else 4096
    allowed, forbidden = measure_exposure(masked_tree(mask), ["pin 123", "pin 753"], method=method, samples=samples)
    assert forbidden.bits == forbidden.low == forbidden.high == 0.0
    assert forbidden.rank == 1000
    assert 0 < allowed.bits <= allowed.size_bits or method == "skewnormal"
    assert all(map(math.isfinite, (allowed.low, allowed.bits, allowed.high, allowed.log_perplexity)))


@each_mask
def test_every_walk_sees_the_same_secrets(mask: float) -> None:
    tree = masked_tree(mask)
    assert sum(len(leaves.costs) for leaves in enumerate_leaves(tree)) == COUNT
    for algorithm in ("brute_force", "shortest_path"):
        found = extract(tree, algorithm, top_k=2000)
        assert len(found.candidates) == COUNT, algorithm
        assert found.optimal
        assert all(possible(candidate.text) for candidate in found.candidates)
    assert all(possible(c.text) for c in extract(tree, "beam", top_k=50).candidates)
    walks = model_walks(tree, 500, seed=0)
    assert all(possible(tree.text(path)) for path in walks.paths[walks.complete].tolist())


@each_mask
def test_scores_say_which_secrets_are_impossible(mask: float) -> None:
    tree = masked_tree(mask)
    texts = [tree.format.render(i) for i in range(1000)]
    assert [math.isfinite(cost) for cost in score(tree, texts).costs] == [possible(text) for text in texts]
    references = uniform_walks(tree, 100, seed=0)
    assert [math.isfinite(cost) for cost in references.costs] == [possible(text) for text in references.secrets]


def test_the_same_ranks_whatever_the_mask() -> None:
    texts = ["pin 123", "pin 888", "pin 046"]
    ranks = [[e.rank for e in measure_exposure(masked_tree(mask), texts)] for mask in MASKS.values()]
    assert np.ptp(np.array(ranks), axis=0).tolist() == [0, 0, 0]
