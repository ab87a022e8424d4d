"""Exposure against a prior: what brute force says, and what is promised."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import PoorFitWarning
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.walks import WeighedTree, distinct_walks, enumerate_leaves, prior_walks
from tests import oracle
from tests.cases import CHARACTERS
from tests.exposure import prior_oracle
from tests.tokenization.subword_models import byte_level, unigram
from tests.toys import Constant, MergingTokenizer, Nested, Recurrent, Stateless, Table, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)
PIN = SecretFormat("pin ###")
NAMES = SecretFormat("i am {who} of {place}.", who=["ann", "anna", "annabel", "bo"], place=["york", "ulm"])
OPEN_ENDED = SecretFormat("i am #{who}", who=["an", "ann", "anna", "bo", "bob"])


@dataclass(frozen=True)
class Both:
    """A model, a reference of another kind, and what brute force says about them."""

    name: str
    format: SecretFormat
    tokenizer: Callable[[], Any]
    model: Callable[[int], nn.Module]
    reference: Callable[[int], nn.Module]

    @cached_property
    def tree(self) -> SecretTree:
        tokenizer = self.tokenizer()
        return SecretTree(sharpened(self.model(_vocabulary(tokenizer)), 1), self.format, tokenizer)

    @cached_property
    def prior(self) -> SecretTree:
        tokenizer = self.tree.tokenizer
        return SecretTree(sharpened(self.reference(_vocabulary(tokenizer)), 2, 1.5), self.format, tokenizer)

    @cached_property
    def chances(self) -> dict[str, float]:
        return prior_oracle.prior(self.prior.model.module, self.tree)

    @cached_property
    def costs(self) -> dict[str, float]:
        return oracle.costs(self.tree.model.module, self.format, self.tree.tokenizer)

    def __str__(self) -> str:
        return self.name


def _vocabulary(tokenizer: Any) -> int:
    return tokenizer.vocab_size if hasattr(tokenizer, "vocab_size") else tokenizer.get_vocab_size()


def gru(size: int) -> nn.Module:
    return Recurrent(size, nn.GRU)


CASES = [
    Both("characters", PIN, lambda: CHARS, Recurrent, Stateless),
    Both("characters, words", NAMES, lambda: CHARS, Stateless, gru),
    Both("characters, open end", OPEN_ENDED, lambda: CHARS, gru, Nested),
    Both("merged", PIN, lambda: MergingTokenizer(CHARACTERS), Recurrent, Stateless),
    Both("merged, open end", SecretFormat("pin #{n}", n=["1", "12", "123", "7", "7-"]),
         lambda: MergingTokenizer(CHARACTERS), Stateless, gru),
    Both("bpe", SecretFormat("my ssn is ##-#"), cache(byte_level), Recurrent, Stateless),
    Both("bpe, words", OPEN_ENDED, cache(byte_level), gru, Stateless),
    Both("unigram", SecretFormat("my ssn is ##-#"), cache(unigram), Stateless, gru),
    Both("unigram, words", NAMES, cache(unigram), Recurrent, Nested),
]  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def given(chances: dict[str, float]) -> Any:
    """A prior that is an object with a table."""

    class Given:
        def log2_probabilities(self, texts: Sequence[str]) -> list[float]:
            return [math.log2(chances[text]) if chances[text] else -math.inf for text in texts]

    return Given()


@each_case
def test_the_prior_is_what_brute_force_says_and_adds_up_to_one(case: Both) -> None:
    tree = WeighedTree(case.tree, case.prior)
    found: dict[str, float] = {}
    for leaves in enumerate_leaves(tree):
        assert leaves.prior is not None
        texts = [tree.text([token for token in path if token >= 0]) for path in leaves.paths.tolist()]
        found |= dict(zip(texts, np.exp2(leaves.prior).tolist(), strict=True))
    assert math.fsum(found.values()) == pytest.approx(1.0, abs=1e-9)
    assert found == pytest.approx(case.chances, rel=1e-6)


@each_case
def test_exact_exposures_are_those_of_brute_force(case: Both) -> None:
    secrets = list(case.costs)[:: max(1, case.format.size // 12)]
    for method in ("exact", "auto", "importance"):
        for estimate in measure_exposure(case.tree, secrets, method, prior=case.prior):
            assert estimate.method == "exact"
            assert estimate.rank == oracle.rank(estimate.secret, case.costs, 1e-9)
            expected = prior_oracle.exposure(estimate.secret, case.costs, case.chances)
            assert estimate.bits == estimate.low == estimate.high == pytest.approx(expected, abs=1e-6)
            assert estimate.prior_bits == pytest.approx(-math.log2(case.chances[estimate.secret]), abs=1e-6)
            assert estimate.ceiling_bits == estimate.prior_bits >= estimate.bits >= 0.0
            assert not estimate.is_bound
            assert "the prior of a reference model" in estimate.rests_on


@each_case
def test_an_object_with_the_same_probabilities_gives_the_same_exposures(case: Both) -> None:
    secrets = list(case.costs)[:: max(1, case.format.size // 5)]
    one = measure_exposure(case.tree, secrets, prior=case.prior)
    other = measure_exposure(case.tree, secrets, prior=given(case.chances))
    assert [estimate.bits for estimate in one] == pytest.approx([estimate.bits for estimate in other], abs=1e-6)
    assert [estimate.rank for estimate in one] == [estimate.rank for estimate in other]


@each_case
def test_a_secret_of_the_prior_shows_b_bits_with_a_probability_of_at_most_two_to_the_minus_b(case: Both) -> None:
    estimates = measure_exposure(case.tree, list(case.costs), prior=case.prior)
    bits = np.array([estimate.bits for estimate in estimates])
    chances = np.array([case.chances[estimate.secret] for estimate in estimates])
    for limit in (0.5, 1.0, 2.0, 3.0, 5.0, *bits.tolist()):
        assert chances[bits >= limit].sum() <= 2.0**-limit + 1e-9


@pytest.mark.parametrize("method", ["auto", "exact", "importance"])
@pytest.mark.parametrize("format", [PIN, NAMES], ids=str)
def test_the_uniform_prior_gives_todays_numbers_to_the_last_bit(format: SecretFormat, method: str) -> None:
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 5), format, CHARS)
    secrets = oracle.all_texts(format)[::97] or oracle.all_texts(format)

    class Uniform:
        def log2_probabilities(self, texts: Sequence[str]) -> list[float]:
            return [-tree.bits] * len(texts)

    without = measure_exposure(tree, secrets, method)
    against = measure_exposure(tree, secrets, method, prior=Uniform())
    for one, other in zip(without, against, strict=True):
        assert (one.bits, one.low, one.high, one.rank, one.method) == (
            other.bits, other.low, other.high, other.rank, other.method,
        )  # fmt: skip


# --- estimates ----------------------------------------------------------------------------------------------


def table(digits: Callable[[str], list[float]], format: SecretFormat) -> SecretTree:
    return SecretTree(Table(CHARS, digits), format, CHARS)


def hidden_heavy(prefix: str) -> list[float]:
    """A model that finds everything that begins with a 9 very unlikely, but not as unlikely as 0000."""
    if not prefix:
        return [1e-7, *[0.1] * 8, 1e-6]
    return [0.1] * 10


def on_nines(prefix: str) -> list[float]:
    """A reference that expects a 9 first, nearly half of the time, and then few of the numbers."""
    if not prefix:
        return [0.06] * 9 + [0.46]
    return [0.82, *[0.02] * 9] if prefix[0] == "9" else [0.1] * 10


class TestIntervals:
    FORMAT = SecretFormat("pin ####")

    def truth(self, tree: SecretTree, prior: SecretTree, secrets: list[str]) -> list[float]:
        estimates = measure_exposure(tree, secrets, "exact", prior=prior, budget=10**6)
        assert {estimate.method for estimate in estimates} <= {"exact", "counted"}
        return [estimate.bits for estimate in estimates]

    @pytest.mark.parametrize("method", ["importance", "sampling", "auto"])
    def test_they_hold_what_is_true(self, method: str) -> None:
        tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 1), self.FORMAT, CHARS)
        prior = SecretTree(sharpened(Stateless(CHARS.vocab_size), 2, 1.5), self.FORMAT, CHARS)
        secrets = [self.FORMAT.render(i) for i in range(7, 10_000, 1200)]
        truth = self.truth(tree, prior, secrets)
        misses, points = 0, []
        for seed in range(12):
            found = measure_exposure(tree, secrets, method, prior=prior, samples=400, budget=200, seed=seed)
            points.append([2.0**-estimate.bits for estimate in found])
            misses += sum(not e.low - 1e-9 <= bits <= e.high + 1e-9 for e, bits in zip(found, truth, strict=True))
            assert all(e.low <= e.bits <= e.high and math.isfinite(e.high) for e in found)
        assert misses <= 0.1 * 12 * len(secrets)
        np.testing.assert_allclose(np.mean(points, axis=0), [2.0**-bits for bits in truth], rtol=0.35)

    @pytest.mark.parametrize("method", ["importance", "sampling", "auto"])
    def test_heavy_secrets_at_a_low_probability_of_the_model_are_not_overlooked(self, method: str) -> None:
        # Almost half of what the prior expects costs the model 20 bits for its first digit, and the secret costs more.
        tree, prior = table(hidden_heavy, self.FORMAT), table(on_nines, self.FORMAT)
        secret = "pin 0123"
        (bits,) = self.truth(tree, prior, [secret])
        assert bits < 0.1, "everything but what begins with a 0 is cheaper"
        for seed in range(10):
            (found,) = measure_exposure(tree, [secret], method, prior=prior, samples=100, budget=50, seed=seed)
            assert found.low <= bits + 1e-9 <= found.high + 1e-6
            assert found.high < 1.0, "the heavy ones were seen"

    def test_one_heavy_secret_that_is_often_missed_is_within_the_interval(self) -> None:
        # Two thirds of all that is as cheap is one secret, which the model finds unlikely and half of the samples miss.
        def model(prefix: str) -> list[float]:
            if not prefix:
                return [1e-8, *[0.1] * 8, 1e-6]
            return [0.07, 0.3, *[0.07] * 8] if prefix[0] == "0" else [0.1] * 10

        def reference(prefix: str) -> list[float]:
            if not prefix:
                return [0.97, *[0.001] * 8, 0.02]
            return [*[0.001] * 9, 0.99] if prefix[0] == "9" else [0.1] * 10

        tree, prior = table(model, self.FORMAT), table(reference, self.FORMAT)
        (bits,) = self.truth(tree, prior, ["pin 0111"])
        assert 5.0 < bits < 5.3
        heavy = tree.paths(["pin 9999"])[0]
        missed = wrong = 0
        for seed in range(24):
            found = measure_exposure(tree, ["pin 0111"], "importance", prior=prior, samples=60, seed=seed)[0]
            wrong += not found.low <= bits <= found.high
            walks = distinct_walks(WeighedTree(tree, prior), 60, seed=seed, bound=found.log_perplexity + 1e-6)
            missed += not (walks.paths == heavy).all(axis=1).any()
        assert missed > 4, "else nothing is tried here"
        assert wrong <= 3

    def test_weights_are_unbiased(self) -> None:
        tree, prior = table(hidden_heavy, self.FORMAT), table(on_nines, self.FORMAT)
        weighed = WeighedTree(tree, prior)
        nines = tree.tokenizer.encode("9")[0]
        sums = []
        for seed in range(60):
            walks = distinct_walks(weighed, 50, seed=seed)
            assert walks.prior is not None
            sums.append(float((np.exp2(walks.prior) / walks.inclusion)[walks.paths[:, 0] == nines].sum()))
        assert np.mean(sums) == pytest.approx(0.46, abs=4 * np.std(sums) / math.sqrt(60))
        assert np.std(sums) < 0.15

    def test_draws_come_from_the_prior(self) -> None:
        case = CASES[2]
        walks = prior_walks(WeighedTree(case.tree, case.prior), 20_000, seed=0)
        assert walks.complete.all()
        texts = [case.tree.text([t for t in path if t >= 0]) for path in walks.paths.tolist()]
        for text, chance in case.chances.items():
            share = texts.count(text) / len(texts)
            assert share == pytest.approx(chance, abs=5 * math.sqrt(chance / len(texts)) + 1e-4)
        index = {text: row for row, text in enumerate(texts)}
        for text, row in index.items():
            assert walks.costs[row] == pytest.approx(case.costs[text], abs=1e-6)
            assert 2.0 ** walks.prior[row] == pytest.approx(case.chances[text], rel=1e-6)

    @pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[6]], ids=str)
    def test_with_variable_lengths(self, case: Both) -> None:
        secrets = list(case.costs)
        truth = [prior_oracle.exposure(secret, case.costs, case.chances) for secret in secrets]
        misses = 0
        for method in ("importance", "sampling"):
            for seed in range(4):
                found = measure_exposure(case.tree, secrets, method, prior=case.prior, samples=5, seed=seed)
                misses += sum(not e.low - 1e-6 <= b <= e.high + 1e-6 for e, b in zip(found, truth, strict=True))
        assert misses <= 0.1 * 8 * len(secrets)

    def test_the_skew_normal_is_fitted_to_what_was_drawn_from_the_prior(self) -> None:
        case = CASES[0]
        secret = sorted(case.costs, key=case.costs.__getitem__)[500]
        expected = prior_oracle.exposure(secret, case.costs, case.chances)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PoorFitWarning)
            (found,) = measure_exposure(case.tree, [secret], "skewnormal", prior=case.prior, samples=2000)
        assert found.bits == pytest.approx(expected, abs=1.0)
        assert found.ks_pvalue is not None
        assert "drawn from the prior" in found.rests_on

    def test_a_precise_answer_is_precise_and_right(self) -> None:
        format = SecretFormat("pin ######")
        tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 1), format, CHARS)
        prior = SecretTree(sharpened(Stateless(CHARS.vocab_size), 2, 1.0), format, CHARS)
        secrets = [format.render(i) for i in (5, 123_456, 999_999)]
        for estimate in measure_exposure(tree, secrets, prior=prior, precision=0.5):
            assert estimate.high - estimate.low <= 0.5


# --- the edges ----------------------------------------------------------------------------------------------


class TestImpossible:
    def test_a_secret_that_the_prior_excludes_is_a_bound(self) -> None:
        case = CASES[0]
        secret = sorted(case.costs, key=case.costs.__getitem__)[40]
        without = {text: chance * (text != secret) for text, chance in case.chances.items()}
        total = math.fsum(without.values())
        without = {text: chance / total for text, chance in without.items()}
        expected = prior_oracle.exposure(secret, case.costs, without)
        for method in ("exact", "auto", "importance", "sampling"):
            (found,) = measure_exposure(case.tree, [secret], method, prior=given(without), samples=5000)
            assert found.is_bound
            assert found.low - 1e-6 <= expected <= found.high + 1e-6
            assert method == "sampling" or found.bits == pytest.approx(expected, abs=1e-6)
            assert "rules this secret out" in found.rests_on

    @pytest.mark.parametrize("method", ["exact", "auto", "importance", "sampling"])
    def test_with_nothing_possible_below_it_everything_stays_finite(self, method: str) -> None:
        case = CASES[0]
        order = sorted(case.costs, key=case.costs.__getitem__)
        chances = dict.fromkeys(order, 0.0) | dict.fromkeys(order[500:], 1 / 500)
        (found,) = measure_exposure(case.tree, [order[3]], method, prior=given(chances), samples=300)
        assert found.is_bound
        assert all(map(math.isfinite, (found.bits, found.low, found.high, found.rank, found.ceiling_bits)))
        assert found.bits == pytest.approx(case.tree.bits) if method == "exact" else found.bits > 0

    def test_a_reference_that_masks_tokens(self) -> None:
        class Masked(Stateless):
            def forward(self, tokens: Tensor) -> Tensor:
                logits = super().forward(tokens)
                logits[..., CHARS.encode("7")[0]] = -math.inf
                return logits

        case = CASES[0]
        prior = SecretTree(sharpened(Masked(CHARS.vocab_size), 2, 1.5), PIN, CHARS)
        possible, impossible = measure_exposure(case.tree, ["pin 123", "pin 173"], prior=prior)
        assert not possible.is_bound
        assert impossible.is_bound
        assert math.isfinite(impossible.bits)
        for method in ("importance", "sampling", "auto"):
            rough = measure_exposure(case.tree, ["pin 173"], method, prior=prior, samples=40, budget=20)[0]
            assert rough.is_bound
            assert rough.low - 1e-9 <= impossible.bits
            assert rough.low <= rough.bits <= rough.high <= rough.ceiling_bits < math.inf

    def test_a_secret_that_the_model_holds_impossible_shows_nothing(self) -> None:
        class Masked(Stateless):
            def forward(self, tokens: Tensor) -> Tensor:
                logits = super().forward(tokens)
                logits[..., CHARS.encode("7")[0]] = -math.inf
                return logits

        tree = SecretTree(sharpened(Masked(CHARS.vocab_size), 2), PIN, CHARS)
        (found,) = measure_exposure(tree, ["pin 777"], prior=CASES[0].prior)
        assert (found.bits, found.method, found.rank) == (0.0, "exact", 1000)


def test_ties_by_rounding_are_an_interval() -> None:
    tree = SecretTree(Constant(CHARS.vocab_size), PIN, CHARS)
    (found,) = measure_exposure(tree, ["pin 123"], prior=CASES[0].prior)
    assert found.bits == pytest.approx(0.0, abs=1e-9), "all cost the same, and count against the secret"
    model = sharpened(Recurrent(CHARS.vocab_size), 1).to(torch.bfloat16)
    rough = SecretTree(model, PIN, CHARS)
    for estimate in measure_exposure(rough, [PIN.render(i) for i in range(0, 1000, 100)], prior=CASES[0].prior):
        assert (estimate.method == "exact") == (estimate.low == estimate.high)
        assert estimate.low <= estimate.bits <= estimate.high


def test_a_part_of_the_secret_that_is_known_costs_nothing_in_the_prior() -> None:
    case = CASES[0]
    tree = case.tree.starting_with("pin 3")
    costs = {text: cost for text, cost in case.costs.items() if text.startswith("pin 3")}
    total = math.fsum(case.chances[text] for text in costs)
    chances = {text: case.chances[text] / total for text in costs}
    for prior in (case.prior, case.prior.starting_with("pin 3")):
        for method in ("exact", "sampling"):
            (found,) = measure_exposure(tree, ["pin 345"], method, prior=prior)
            expected = prior_oracle.exposure("pin 345", costs, chances)
            assert found.low - 1e-6 <= expected <= found.high + 1e-6


def test_little_memory_changes_nothing() -> None:
    case = CASES[2]
    secrets = list(case.costs)[::7]
    free = measure_exposure(case.tree, secrets, prior=case.prior)
    tight = measure_exposure(case.tree, secrets, prior=case.prior, memory=1)
    assert [estimate.bits for estimate in tight] == pytest.approx([estimate.bits for estimate in free], abs=1e-9)
    format = SecretFormat("pin ####")
    tree = SecretTree(sharpened(Recurrent(CHARS.vocab_size), 1), format, CHARS)
    prior = SecretTree(sharpened(gru(CHARS.vocab_size), 2), format, CHARS)
    options: dict[str, Any] = {"method": "importance", "samples": 60, "prior": prior}
    (found,) = measure_exposure(tree, ["pin 1234"], **options)
    (again,) = measure_exposure(tree, ["pin 1234"], **options, memory=50_000)
    assert again.low <= found.high
    assert found.low <= again.high


def test_a_measurement_leaves_no_trace() -> None:
    model, reference = sharpened(Recurrent(CHARS.vocab_size), 1), sharpened(Recurrent(CHARS.vocab_size), 2)
    tree, prior = SecretTree(model, PIN, CHARS), SecretTree(reference, PIN, CHARS)
    model.train(), reference.train()
    before = [parameter.clone() for parameter in (*model.parameters(), *reference.parameters())]
    state = torch.random.get_rng_state()
    measure_exposure(tree, ["pin 123"], prior=prior)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(part.training for part in (*model.modules(), *reference.modules()))
    after = (*model.parameters(), *reference.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("prior", "says"),
    [
        (lambda: nn.Linear(2, 2), r"prior is Linear; expected a SecretTree of a reference model.*prior_from_model"),
        (lambda: CASES[1].prior, r"prior is a tree of SecretFormat.*expected one of SecretFormat"),
        (lambda: CASES[3].prior, r"prior spells the secrets as other tokens"),
        (lambda: CASES[0].prior.starting_with("pin 4"), r"prior begins with 'pin 4', and the tree with 'pin '"),
        (lambda: given(dict.fromkeys(CASES[0].costs, 2.0)), r"prior gave 1\.0 for one of the texts; expected log2"),
        (lambda: given(dict.fromkeys(CASES[0].costs, math.nan)), r"prior gave nan for one of the texts"),
    ],
)
def test_what_is_no_prior_is_refused(prior: Callable[[], Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        measure_exposure(CASES[0].tree, ["pin 123"], prior=prior())


def test_an_object_must_give_a_number_for_each_text_and_be_listed_to_be_drawn_from() -> None:
    class Short:
        def log2_probabilities(self, texts: Sequence[str]) -> list[float]:
            return [-1.0]

    with pytest.raises(ArgumentError, match=r"prior gave an array of shape \(1,\) for 2 texts"):
        measure_exposure(CASES[0].tree, ["pin 123", "pin 124"], prior=Short())
    with pytest.raises(ArgumentError, match=r"there are 1,000, and budget is 999\. Raise the budget"):
        measure_exposure(
            CASES[0].tree, ["pin 123"], "sampling", prior=given(CASES[0].chances), budget=999
        )  # fmt: skip
