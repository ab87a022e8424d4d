"""A decoder gives each token the probability that `generate` would give it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_exposure import Decoder
from lightning_exposure.errors import ArgumentError, ModelError
from tests.leakage.brute_force import as_transformers_does

SETTINGS = [
    (1.0, None, None),
    (0.7, None, None),
    (1.3, 5, None),
    (1.0, 1, None),
    (0.5, None, 0.8),
    (1.0, 4, 0.6),
    (2.0, 100, 0.05),
    (1.0, 7, 1.0),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_are_those_of_the_warpers_of_transformers(
    temperature: float, top_k: int | None, top_p: float | None, dtype: torch.dtype
) -> None:
    logits = 3 * torch.randn(200, 23, generator=torch.Generator().manual_seed(1), dtype=dtype)
    theirs = as_transformers_does(temperature, top_k, top_p)
    expected = torch.stack([theirs(row) for row in logits]).double().numpy()
    decoder = Decoder(temperature, top_k, top_p)
    np.testing.assert_allclose(decoder.probabilities(logits), expected, atol=1e-6)
    low, high = decoder.bounds(logits, rounding=1e-9)
    assert (low <= expected + 1e-6).all()
    assert (expected - 1e-6 <= high).all()


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_bounds_hold_whatever_rounding_does(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Logits that nearly tie, moved by less than the rounding that was announced, in every direction."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(-2, 3, (60, 12), generator=generator).double()
    decoder, theirs = Decoder(temperature, top_k, top_p), as_transformers_does(temperature, top_k, top_p)
    low, high = decoder.bounds(logits, rounding=2.1e-6)
    for _ in range(10):
        moved = logits + 1e-6 * (2 * torch.rand(logits.shape, generator=generator, dtype=torch.float64) - 1)
        truth = torch.stack([theirs(row) for row in moved]).numpy()
        assert (low <= truth * (1 + 1e-5)).all()
        assert (truth <= high * (1 + 1e-5)).all()


def test_a_token_that_rounding_may_cut_off_counts_in_the_upper_bound_only() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0 - 1e-9, 0.0]], dtype=torch.float64)
    low, high = Decoder(top_k=2).bounds(logits, rounding=1e-6)
    assert low[0, 1] == low[0, 2] == 0.0
    assert high[0, 1] > 0.0
    assert high[0, 2] > 0.0
    assert 0.0 < low[0, 0] < high[0, 0] <= 1.0
    assert high[0, 3] == 0.0


def test_equal_logits_are_kept_together_where_equal_can_be_told() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    low, high = Decoder(top_k=2).bounds(logits, rounding=1e-6, repeatable=True)
    assert low[0, 1] == low[0, 2] == high[0, 1] > 0.0
    assert high[0, 3] == 0.0


def test_cuts_beyond_the_vocabulary_and_masked_tokens() -> None:
    logits = torch.tensor([[0.0, -np.inf, 1.0]])
    assert Decoder(top_k=50, top_p=0.999).probabilities(logits)[0, 1] == 0.0
    assert Decoder().bounds(logits).high[0, 1] == 0.0
    with pytest.raises(ModelError, match="NaN or infinite"):
        Decoder().probabilities(torch.tensor([[float("nan"), 0.0]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0; expected a number above 0. Greedy decoding is top_k=1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0; expected an integer of at least 1"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_p": 0.0}, "top_p is 0.0; expected a number above 0 and of at most 1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Decoder(**options)
