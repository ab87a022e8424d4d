"""What draws from a prior say when they are unlucky."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from lightning_exposure import CharTokenizer, SecretFormat, SecretTree, measure_exposure

FORMAT = SecretFormat("pin #")
DIGITS = CharTokenizer.from_text("pin 0123456789")


class _MostlySeven:
    """A prior that expects one of ten secrets nine times out of ten."""

    def log2_probabilities(self, texts: Sequence[str]) -> list[float]:
        return [math.log2(0.9 if text == "pin 7" else 0.1 / 9) for text in texts]


def test_an_interval_is_never_turned_around_by_what_was_found() -> None:
    # Seven is the cheapest. Its probability is known as soon as it is drawn once, and it is often drawn so rarely that
    # the share of the draws alone would say less than that.
    model = nn.Embedding(DIGITS.vocab_size, DIGITS.vocab_size)
    with torch.no_grad():
        model.weight[:] = torch.arange(DIGITS.vocab_size, dtype=torch.float32) / 4
        model.weight[:, DIGITS.encode("7")[0]] = 9.0
    tree = SecretTree(model, FORMAT, DIGITS)
    secrets = [FORMAT.render(number) for number in range(FORMAT.size)]
    exact = measure_exposure(tree, secrets, "exact", prior=_MostlySeven())
    misses = 0
    for seed in range(24):
        found = measure_exposure(tree, secrets, "sampling", samples=20, seed=seed, prior=_MostlySeven(), confidence=0.5)
        for estimate, truth in zip(found, exact, strict=True):
            assert estimate.low <= estimate.bits <= estimate.high
            misses += not estimate.low - 1e-9 <= truth.bits <= estimate.high + 1e-9
    assert misses <= 0.5 * 24 * len(secrets)
