"""Pairs of source and target: their costs, and exposures where every secret has a source of its own."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters.encoder_decoder.adapter import Seq2SeqAdapter
from lightning_exposure.adapters.encoder_decoder.translations import score_translations
from lightning_exposure.errors import ArgumentError, BudgetError, ModelError, SecretError
from lightning_exposure.exposure import exposure_by_rank
from lightning_exposure.exposure.tied import measure_tied_exposure
from lightning_exposure.secrets.formats.tied import TiedFormats
from lightning_exposure.walks import score
from tests import oracle
from tests.toys import sharpened
from tests.translators import (
    CASES,
    END,
    LETTERS,
    PIN,
    SOURCE,
    START,
    Case,
    LogitsOnly,
    each_model,
    make_lstm,
)

TIED = TiedFormats(SecretFormat("my pin is ###"), SecretFormat("pin ###"))


def source_ids(text: str) -> list[int]:
    return [*LETTERS.encode(text), END]


@cache
def tied_costs(case: Case) -> dict[str, float]:
    sources, targets = zip(*map(TIED.pair, range(TIED.size)), strict=True)
    costs = case.many(list(map(source_ids, sources)), list(map(LETTERS.encode, targets)))
    return dict(zip(targets, costs, strict=True))


def measure_tied(case: Case, secrets: list[str], **options: Any) -> list[Any]:
    ways = {"encode_source": source_ids, "encode_target": LETTERS.encode}
    return measure_tied_exposure(case.model, TIED, secrets, **ways, **options)


@each_model
def test_pairs_cost_what_full_passes_say(case: Case) -> None:
    texts = [("my pin is 815", "pin 815"), ("a", "bcd"), ("my pin is 815", "pin 816"), ("ab", "bcd"), ("a", "e")]
    texts += [("cd", "bcd"), ("ab", "xyz"), ("ef", "bcd"), ("cd", "xyz")]
    pairs = [(LETTERS.encode(source), LETTERS.encode(target)) for source, target in texts]
    expected = [case.cost(source, target) for source, target in pairs]
    np.testing.assert_allclose(score_translations(case.model, pairs), expected, atol=1e-6)
    np.testing.assert_allclose(score_translations(case.model, pairs, batch_size=1), expected, atol=1e-6)
    assert score_translations(case.model, []).shape == (0,)


def test_pairs_and_tree_agree_where_the_source_is_the_same() -> None:
    case = CASES[3]
    texts = oracle.all_texts(PIN)[::50]
    whole = score_translations(case.model, [(SOURCE, LETTERS.encode(text)) for text in texts])
    prompt = case.cost(SOURCE, LETTERS.encode(PIN.prompt))
    np.testing.assert_allclose(whole, score(case.tree(), texts).costs + prompt, atol=1e-6)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3], CASES[5]], ids=str)
def test_tied_exposures_are_those_of_brute_force(case: Case) -> None:
    costs = tied_costs(case)
    secrets = sorted(costs, key=costs.__getitem__)[::250]
    for estimate in measure_tied(case, secrets, batch_size=300):
        rank = oracle.rank(estimate.secret, costs, 1e-9)
        assert (estimate.method, estimate.rank) == ("exact", rank)
        assert estimate.bits == estimate.low == estimate.high == pytest.approx(math.log2(1000 / rank))
        assert estimate.log_perplexity == pytest.approx(costs[estimate.secret], abs=1e-4)
        first, second = sorted(costs.values())[:2]
        assert estimate.margin_bits == (pytest.approx(second - first, abs=1e-4) if rank == 1 else None)
    references = [cost for text, cost in costs.items() if text != secrets[1]]
    (by_rank,) = exposure_by_rank([costs[secrets[1]]], references)
    assert measure_tied(case, [secrets[1]])[0].bits == pytest.approx(by_rank)


def test_tied_sources_are_not_one_source() -> None:
    case = CASES[3]
    tied, given = tied_costs(case), case.costs(TIED.target)
    assert min(tied, key=tied.__getitem__) != min(given, key=given.__getitem__)


def test_a_sample_of_pairs_covers_the_rank_and_a_full_one_is_exact() -> None:
    case, costs = CASES[3], tied_costs(CASES[3])
    secrets = sorted(costs, key=costs.__getitem__)[0::300]
    truth = [math.log2(1000 / rank) for rank in (1, 301, 601, 901)]
    for estimate, bits in zip(measure_tied(case, secrets, method="sampling", samples=200), truth, strict=True):
        assert estimate.method == "sampling"
        assert estimate.low <= bits <= estimate.high
        assert estimate.is_bound or estimate.bits == pytest.approx(bits, abs=0.4)
    assert measure_tied(case, secrets, method="sampling", samples=200)[0].is_bound
    full = measure_tied(case, secrets, method="sampling", samples=5000)
    assert [(estimate.method, estimate.rank) for estimate in full] == [("exact", rank) for rank in (1, 301, 601, 901)]
    other = measure_tied(case, secrets, method="sampling", samples=200, seed=1)
    assert other[1].bits != measure_tied(case, secrets, method="sampling", samples=200)[1].bits


def test_the_skew_normal_of_pairs_is_near_the_truth_in_the_middle() -> None:
    case, costs = CASES[3], tied_costs(CASES[3])
    secret = sorted(costs, key=costs.__getitem__)[249]
    (estimate,) = measure_tied(case, [secret], method="skewnormal", samples=700)
    assert estimate.method == "skewnormal"
    assert estimate.bits == pytest.approx(2.0, abs=0.4)
    assert estimate.ks_pvalue is not None


def test_auto_counts_within_its_budget_and_samples_beyond() -> None:
    case, secret = CASES[3], TIED.target.render(3)
    assert measure_tied(case, [secret], budget=1000)[0].method == "exact"
    assert measure_tied(case, [secret], budget=999, samples=100)[0].method == "sampling"
    with pytest.raises(BudgetError, match=r"budget is 999 pairs, and there are 1,000"):
        measure_tied(case, [secret], budget=999, method="exact")


def test_secrets_come_back_in_the_order_given() -> None:
    secrets = [TIED.target.render(i) for i in (5, 3, 5)]
    assert [estimate.secret for estimate in measure_tied(CASES[3], secrets)] == secrets
    assert measure_tied(CASES[3], []) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"method": "importance"},
            r"method is 'importance', which walks a tree; expected .*Seq2SeqAdapter\(model",
        ),
        ({"method": "guess"}, r"method is 'guess'; expected one of 'auto', 'exact', 'sampling', 'skewnormal'"),
        ({"samples": 0}, "samples is 0"),
        ({"budget": 0}, "budget is 0"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_arguments_that_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        measure_tied(CASES[3], [TIED.target.render(0)], **options)


def test_secrets_and_formats_that_are_refused() -> None:
    with pytest.raises(SecretError, match=r"text does not fit: position 6 .* format 'pin ###'"):
        measure_tied(CASES[3], ["pin 81x"])
    with pytest.raises(ArgumentError, match=r"secrets is 'pin 815'; expected a list of texts"):
        measure_tied(CASES[3], "pin 815")  # type: ignore[arg-type]
    ways = {"encode_source": source_ids, "encode_target": LETTERS.encode}
    with pytest.raises(ArgumentError, match=r"formats is SecretFormat; expected TiedFormats"):
        measure_tied_exposure(CASES[3].model, PIN, [], **ways)  # type: ignore[arg-type]


def test_pairs_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match="without tokens, the first at position 1"):
        score_translations(CASES[3].model, [([3], [4]), ([3], [])])
    broken: Any = make_lstm()
    with torch.no_grad():
        broken.network.head.bias[5] = math.nan
    with pytest.raises(ModelError, match=r"returned NaN for 2 of 2 translations, the first at position 0"):
        score_translations(broken, [([3], [4]), ([3], [4])])


class HalfLogits(LogitsOnly):
    def decode(self, tokens: Tensor, memory: dict[str, Tensor]) -> Tensor:
        return super().decode(tokens, memory).bfloat16()


def test_logits_in_half_precision_are_normalized_in_single() -> None:
    model = sharpened(HalfLogits(), seed=1)
    target = LETTERS.encode(PIN.render(815))
    inputs = torch.tensor([[START, *target[:-1]]])
    with torch.no_grad():
        chances = torch.log_softmax(model.decode(inputs, model.encode(torch.tensor([SOURCE]))).float(), dim=-1)[0]
    bits = [-float(chances[place, token]) / math.log(2) for place, token in enumerate(target)]
    assert score_translations(model, [(SOURCE, target)]) == pytest.approx(sum(bits), abs=1e-4)
    tree = SecretTree(Seq2SeqAdapter(model, SOURCE), PIN, LETTERS)
    assert score(tree, [PIN.render(815)]).costs == pytest.approx(sum(bits[len(PIN.prompt) :]), abs=1e-4)
