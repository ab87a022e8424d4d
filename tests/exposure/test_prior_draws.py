"""What draws from a prior say when they are unlucky, and when the prior is not what it should be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from lightning_exposure import CharTokenizer, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError

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


class _Flat:
    """The same number for each text."""

    def __init__(self, value: float | str) -> None:
        self.value = value

    def log2_probabilities(self, texts: Sequence[str]) -> list[float | str]:
        return [self.value] * len(texts)


def _some_tree() -> SecretTree:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SecretTree(nn.Embedding(DIGITS.vocab_size, DIGITS.vocab_size), FORMAT, DIGITS)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.log(0.1), r"add up to 2\.02\d over all 10 secrets; expected 1\. Take logarithms to the base 2"),
        (-math.inf, "add up to 0 over all 10 secrets"),
        ("likely", r"prior gave list, of which no array of numbers can be made"),
    ],
)
def test_what_are_no_probabilities_of_all_secrets_is_refused(value: float | str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        measure_exposure(_some_tree(), ["pin 3"], "sampling", prior=_Flat(value))  # type: ignore[arg-type]


def test_draws_agree_with_a_count_if_a_part_of_the_prior_is_elsewhere() -> None:
    # A quarter of the probability is on texts that are no secrets, such as spellings that a tokenizer does not use.
    tree, prior = _some_tree(), _Flat(math.log2(0.075))
    secrets = [FORMAT.render(number) for number in range(FORMAT.size)]
    exact = measure_exposure(tree, secrets, "exact", prior=prior)  # type: ignore[arg-type]
    drawn = measure_exposure(tree, secrets, "sampling", samples=4000, confidence=0.999, prior=prior)  # type: ignore[arg-type]
    for estimate, truth in zip(drawn, exact, strict=True):
        assert estimate.low <= truth.bits <= estimate.high
        assert estimate.bits == pytest.approx(truth.bits, abs=0.3)
