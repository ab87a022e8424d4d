"""By how many bits the first secret is ahead of the next one."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure._files import Field
from lightning_exposure.exposure import _margin
from lightning_exposure.report._reading import read_estimate
from lightning_exposure.report.verdicts import verdict_of
from lightning_exposure.tokenization import CharTokenizer
from tests import oracle
from tests.cases import CHARACTERS
from tests.toys import Constant, Recurrent, Stateless, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)
PIN = SecretFormat("pin ###")
MODEL = sharpened(Recurrent(CHARS.vocab_size), 1)
TREE = SecretTree(MODEL, PIN, CHARS)
COSTS = oracle.costs(MODEL, PIN, CHARS)
FIRST, SECOND, *_ = sorted(COSTS, key=COSTS.__getitem__)


@pytest.mark.parametrize("method", ["auto", "exact"])
@pytest.mark.parametrize("with_prior", [False, True])
def test_the_first_is_ahead_by_what_the_second_costs_more(method: str, with_prior: bool) -> None:
    prior = SecretTree(sharpened(Stateless(CHARS.vocab_size), 2), PIN, CHARS) if with_prior else None
    second, first = measure_exposure(TREE, [SECOND, FIRST], method, prior=prior)
    assert first.rank == 1
    assert first.margin_bits == pytest.approx(COSTS[SECOND] - COSTS[FIRST], abs=1e-6)
    assert not first.margin_is_bound
    assert (second.rank, second.margin_bits) == (2, None)


def test_a_search_that_ends_early_gives_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = measure_exposure(TREE, [FIRST], "exact")
    bounds = []
    for expansions in (1, 3, 10, 30):
        monkeypatch.setattr(_margin, "_EXPANSIONS", expansions)
        monkeypatch.setattr(_margin, "_AS_LONG", 0)
        (found,) = measure_exposure(TREE, [FIRST], "exact")
        assert whole.margin_bits is not None
        bounds.append(found.margin_bits or 0.0)
        assert found.margin_is_bound == (0.0 < bounds[-1] < whole.margin_bits - 1e-6)
    assert bounds == sorted(bounds)
    assert bounds[-1] <= whole.margin_bits + 1e-6


@pytest.mark.parametrize("seed", [3, 5])
def test_a_first_secret_that_took_long_to_count_has_its_margin_all_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with a count of many thousand expansions: the search has to read all of them again before it is any further.
    monkeypatch.setattr(_margin, "_EXPANSIONS", 1)
    model, pins = sharpened(Recurrent(CHARS.vocab_size), seed), SecretFormat("pin ####")
    tree, costs = SecretTree(model, pins, CHARS), oracle.costs(model, pins, CHARS)
    first, second, *_ = sorted(costs, key=costs.__getitem__)
    (found,) = measure_exposure(tree, [first])
    assert found.margin_bits == pytest.approx(costs[second] - costs[first], abs=1e-6)
    assert not found.margin_is_bound


def test_a_long_secret_that_was_memorized_has_its_margin_too() -> None:
    # At the end of a path of cheap tokens, beside which there is much to read: the 24 digits of a text
    # that the model is almost sure of.
    class Memory(torch.nn.Module):
        """Sure of one text; of anything else it knows nothing."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.ids = CHARS.encode(text)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            logits = torch.zeros(*tokens.shape, CHARS.vocab_size, dtype=torch.float64)
            for row, ids in enumerate(tokens.tolist()):
                for place in range(len(ids)):
                    if ids[: place + 1] == self.ids[: place + 1] and place + 1 < len(self.ids):
                        logits[row, place, self.ids[place + 1]] = 6.0 + 0.1 * place
            return logits

    text = "pin 271828182845904523536028"
    (found,) = measure_exposure(SecretTree(Memory(text), SecretFormat("pin " + "#" * 24), CHARS), [text])
    assert (found.rank, found.method) == (1, "exact")
    # The next one differs in the last digit alone: that is where another guess costs least.
    logits = torch.zeros(CHARS.vocab_size, dtype=torch.float64)
    logits[0] = 6.0 + 0.1 * (len(text) - 2)
    sure, other = (-torch.log_softmax(logits, 0) / math.log(2)).tolist()[:2]
    assert found.margin_bits == pytest.approx(other - sure, abs=1e-6)
    assert not found.margin_is_bound


def test_only_a_certain_first_rank_has_a_margin() -> None:
    flat = SecretTree(Constant(CHARS.vocab_size), PIN, CHARS)
    assert measure_exposure(flat, [FIRST])[0].margin_bits is None
    single = SecretTree(MODEL, SecretFormat("pin {only}", only=["123"]), CHARS)
    assert measure_exposure(single, ["pin 123"])[0].margin_bits is None
    (sampled,) = measure_exposure(TREE, [FIRST], "sampling", samples=50)
    assert sampled.margin_bits is None


def test_it_survives_json() -> None:
    (found,) = measure_exposure(TREE, [FIRST])
    assert type(found)(**found.to_dict()) == found  # type: ignore[arg-type]


def test_a_record_keeps_it_and_a_verdict_does_not_take_bits_against_a_prior_for_ranks() -> None:
    prior = SecretTree(sharpened(Stateless(CHARS.vocab_size), 2), PIN, CHARS)
    first, second = measure_exposure(TREE, [FIRST, SECOND], prior=prior)
    for estimate in (first, second):
        assert read_estimate(Field("record.json: ", estimate.to_dict())) == estimate
    assert verdict_of(FIRST, PIN.size, first).found_within == 1
    (sampled,) = measure_exposure(TREE, [SECOND], "importance", samples=20, prior=prior)
    assert sampled.method == "importance"
    assert verdict_of(SECOND, PIN.size, sampled).estimated is None
