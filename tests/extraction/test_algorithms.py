"""Four attacks on the tree, against brute force by the oracle."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lightning_exposure import Extraction, SecretFormat, SecretTree, extract
from lightning_exposure.errors import ArgumentError, ManifestError, SecretError
from lightning_exposure.tokenization import CharTokenizer
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.walks import enumerate_leaves, model_walks, score
from lightning_exposure.walks.best_first import _Search
from tests.cases import CASES, CHARACTERS, Case
from tests.toys import Constant, MergingTokenizer, Recurrent, Stateless, sharpened

CHARS = CharTokenizer.from_text(CHARACTERS)


def cheapest(case: Case, count: int) -> list[tuple[str, float]]:
    return sorted(case.costs.items(), key=lambda item: item[1])[:count]


def found(extraction: Extraction) -> list[tuple[str, float]]:
    return [(candidate.text, pytest.approx(candidate.bits, abs=1e-8)) for candidate in extraction.candidates]


# One node at a time takes long: it is tried on characters, on merged tokens and on secrets that begin others.
@pytest.mark.parametrize(
    ("case", "largest_batch"),
    [(case, largest_batch) for case in CASES for largest_batch in (7, 4096)] + [(CASES[n], 1) for n in (6, 8, 11)],
    ids=str,
)
@pytest.mark.parametrize("memory", [2**30, 80_000])
def test_shortest_path_finds_exactly_the_cheapest_at_every_batch_size(
    case: Case, largest_batch: int, memory: int
) -> None:
    result = extract(case.tree(), top_k=10, largest_batch=largest_batch, memory=memory)
    assert found(result) == cheapest(case, 10)
    assert result.optimal
    assert result.ended_by == "proof"
    assert [candidate.order for candidate in result.candidates] == list(range(1, len(result.candidates) + 1))


@pytest.mark.parametrize("algorithm", ["brute_force", "beam", "sampling"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_other_attacks_find_the_cheapest_when_they_look_at_everything(case: Case, algorithm: str) -> None:
    everything: dict[str, Any] = {"brute_force": {}, "beam": {"width": 10_000}, "sampling": {"samples": 60_000}}[
        algorithm
    ]
    if algorithm == "sampling":
        everything |= {"temperature": 3.0}
    result = extract(case.tree(), algorithm, top_k=5, **everything)
    assert found(result) == cheapest(case, 5)
    assert result.optimal == (algorithm != "sampling")


MODELS = {
    "lstm": lambda: Recurrent(CHARS.vocab_size),
    "gru": lambda: Recurrent(CHARS.vocab_size, nn.GRU),
    "stateless": lambda: Stateless(CHARS.vocab_size),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("largest_batch", [1, 7, 64, 4096])
@pytest.mark.parametrize("memory", [2**30, None])
def test_the_top_ten_of_ten_thousand(model: str, trained: bool, largest_batch: int, memory: int | None) -> None:
    """Sharp and flat models, with all the memory and with so little that states are read again."""
    torch.manual_seed(0)
    module = MODELS[model]().double()
    module = sharpened(module, seed=4, scale=2.0) if trained else module.eval()
    tree = SecretTree(module, SecretFormat("pin ####"), CHARS)
    expected = extract(tree, "brute_force", top_k=10)
    budget = None if trained or largest_batch > 7 else 600  # one by one a flat model would take minutes
    # The open nodes of a flat model alone are some hundred kilobytes: states get what is left of the limit.
    little = 400_000 if memory is None else memory
    result = extract(tree, top_k=10, largest_batch=largest_batch, memory=little, budget=budget)
    if result.optimal:
        assert [c.text for c in result.candidates] == [c.text for c in expected.candidates]
    else:
        assert budget is not None
        assert result.lower_bound <= expected.candidates[0].bits + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_the_top_ten_of_a_million(cell: type[nn.RNNBase]) -> None:
    module = sharpened(Recurrent(CHARS.vocab_size, cell, width=8), seed=5, scale=2.5)
    tree = SecretTree(module, SecretFormat("number ######"), CHARS)
    expected = extract(tree, "brute_force", top_k=10)
    for memory in (2**30, 3_000_000):
        result = extract(tree, top_k=10, memory=memory)
        assert result.optimal
        assert [c.text for c in result.candidates] == [c.text for c in expected.candidates]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    pattern=st.text(alphabet="#?-#", min_size=1, max_size=4).filter(lambda p: "#" in p or "?" in p),
    merged=st.lists(st.sampled_from(["12", "7-", " 3", "1a", "00", "-1", "x"]), unique=True, max_size=4),
    largest_batch=st.sampled_from([1, 3, 64]),
    memory=st.sampled_from([2**30, 60_000]),
)
def test_random_models_random_formats(
    seed: int, pattern: str, merged: list[str], largest_batch: int, memory: int
) -> None:
    tokenizer = MergingTokenizer(CHARACTERS, [text for text in merged if len(text) > 1])
    format = SecretFormat("is " + pattern[:3])  # at most 26^3
    tree = SecretTree(sharpened(Recurrent(tokenizer.vocab_size, width=6), seed), format, tokenizer)
    expected = extract(tree, "brute_force", top_k=3)
    result = extract(tree, top_k=3, largest_batch=largest_batch, memory=memory)
    if result.ended_by != "memory":
        assert [c.text for c in result.candidates] == [c.text for c in expected.candidates]
    assert result.lower_bound <= expected.candidates[-1].bits + 1e-9


class TestFlatModel:
    """An untrained model hardly prefers any secret: the search cannot end, and says so."""

    def tree(self, digits: int) -> SecretTree:
        torch.manual_seed(1)
        return SecretTree(Recurrent(CHARS.vocab_size).eval(), SecretFormat("n " + "#" * digits), CHARS)

    def test_it_runs_into_its_budget_and_says_so(self) -> None:
        result = extract(self.tree(9), budget=5_000)
        assert not result.optimal
        assert result.ended_by == "expansions"
        assert result.expansions == 5_000
        assert result.lower_bound > 0

    def test_its_lower_bound_is_true(self) -> None:
        truth = extract(self.tree(4), "brute_force").candidates[0].bits
        for budget in (10, 100, 500):
            result = extract(self.tree(4), budget=budget)
            assert not result.optimal
            assert 0 < result.lower_bound <= truth

    def test_seconds_and_memory_end_it_too(self) -> None:
        assert extract(self.tree(9), seconds=0.2).ended_by == "seconds"
        result = extract(self.tree(9), memory=200_000)
        assert result.ended_by == "memory"
        assert result.lower_bound > 0

    def test_it_holds_its_memory_limit(self) -> None:
        tree, limit = self.tree(9), 2_000_000
        seen: list[int] = []
        original = tree.model.step

        def counting(state: Any, tokens: torch.Tensor) -> Any:
            seen.append(len(tokens))
            return original(state, tokens)

        tree.model.step = counting  # type: ignore[method-assign]
        extract(tree, memory=limit, budget=20_000)
        # One batch in the model at a time, a quarter of the limit at most.
        assert max(seen) * tree.row_bytes() <= limit / 4


def test_nothing_more_likely_exists_when_top_k_is_all() -> None:
    case = CASES[6]
    result = extract(case.tree(), top_k=100)
    assert len(result.candidates) == case.format.size
    assert result.optimal


def test_the_rule_of_the_paper_stops_after_twice_the_batches() -> None:
    """On a flat model the first leaf comes long before the proof: the paper's rule ends there, and claims nothing."""
    torch.manual_seed(1)
    tree = SecretTree(Recurrent(CHARS.vocab_size).double().eval(), SecretFormat("pin ###"), CHARS)
    paper, proof = (extract(tree, stop=stop, largest_batch=16) for stop in ("paper", "proof"))
    assert paper.ended_by == "paper"
    assert not paper.optimal
    assert paper.expansions < proof.expansions
    assert paper.candidates[0].bits >= proof.candidates[0].bits
    assert paper.lower_bound <= proof.candidates[0].bits + 1e-9


def test_a_narrow_beam_makes_no_claim() -> None:
    case = CASES[0]
    result = extract(case.tree(), "beam", width=2)
    assert not result.optimal
    assert result.ended_by == "width"
    assert result.lower_bound <= cheapest(case, 1)[0][1] + 1e-9
    assert result.expansions <= 1 + 2 + 2


class TestSampling:
    def test_it_says_which_walk_came_to_the_target_first(self) -> None:
        case = CASES[0]
        target = cheapest(case, 1)[0][0]
        tree = case.tree()
        result = extract(tree, "sampling", samples=20_000, target=target, seed=3)
        walks = model_walks(tree, 16_384, seed=3)  # the first batch of the same walks
        texts = [tree.text(tokens_of(path)) for path in walks.paths]
        assert result.walks_until_target == texts.index(target) + 1
        least_likely = max(case.costs, key=case.costs.__getitem__)
        assert extract(tree, "sampling", samples=10, target=least_likely).walks_until_target is None

    def test_the_seed_decides(self) -> None:
        tree = CASES[0].tree()
        first, same, other = (extract(tree, "sampling", samples=20, top_k=5, seed=seed) for seed in (1, 1, 2))
        assert first.candidates == same.candidates != other.candidates


class TestKnownBeginning:
    @pytest.mark.parametrize("case", CASES, ids=str)
    @pytest.mark.parametrize("more", [0, 1, 2])
    def test_only_secrets_that_begin_so_are_found(self, case: Case, more: int) -> None:
        known = case.format.render(case.format.size // 2)[: len(case.format.prompt) + more]
        part = case.tree().starting_with(known)
        expected = {text for text in case.costs if text.startswith(known)}
        texts = {
            part.text([token for token in path if token >= 0])
            for leaves in enumerate_leaves(part)
            for path in leaves.paths
        }
        assert texts == expected
        assert part.size == len(expected)
        result = extract(case.tree(), top_k=3, known=known)
        best = sorted(expected, key=case.costs.__getitem__)[:3]
        assert [candidate.text for candidate in result.candidates] == best

    def test_what_is_known_costs_nothing(self) -> None:
        tree = SecretTree(Constant(CHARS.vocab_size), SecretFormat("ssn ##-##"), CHARS)
        bits = [extract(tree, known=known).candidates[0].bits for known in ("ssn ", "ssn 1", "ssn 12-3")]
        assert bits == pytest.approx([n * np.log2(CHARS.vocab_size) for n in (5, 4, 1)])

    def test_exposure_can_be_asked_for_too(self) -> None:
        tree = CASES[0].tree().starting_with("my pin is 1")
        assert score(tree, ["my pin is 123"]).costs[0] < score(CASES[0].tree(), ["my pin is 123"]).costs[0]
        with pytest.raises(SecretError, match="expected one that begins with the known text"):
            score(tree, ["my pin is 223"])

    def test_what_does_not_fit_is_refused_with_its_place(self) -> None:
        with pytest.raises(
            SecretError, match=r"position 11 is a lower-case letter, where a digit \(0-9\) was expected"
        ):
            extract(CASES[0].tree(), known="my pin is 1x")
        with pytest.raises(SecretError, match="goes on too long"):
            extract(CASES[0].tree(), known="my pin is 1234")
        with pytest.raises(ArgumentError, match="known is 5, of type int; expected a string"):
            extract(CASES[0].tree(), known=5)  # type: ignore[arg-type]

    def test_the_name_that_trees_have_for_it(self) -> None:
        format = SecretFormat("to: {who}\n# {street}\nusa", who=["al", "alan"], street=["oak", "elm"])
        letters = CharTokenizer.from_text(CHARACTERS, "\n")
        tree = SecretTree(sharpened(Recurrent(letters.vocab_size), 1), format, letters)
        begun = "to: alan\n3"
        found = extract(tree, top_k=2, starting_with=begun)
        assert {candidate.text for candidate in found.candidates} == {f"{begun} oak\nusa", f"{begun} elm\nusa"}
        assert found.candidates == extract(tree, top_k=2, known=begun).candidates
        with pytest.raises(ArgumentError, match="starting_with and known are given; expected one of the two"):
            extract(tree, known="to: ", starting_with="to: al")


def test_a_checksum_leaves_only_valid_secrets() -> None:
    tree = SecretTree(
        sharpened(Recurrent(CHARS.vocab_size), 0), SecretFormat.credit_card("card ", separator="-"), CHARS
    )
    result = extract(tree, "beam", top_k=20, width=50)
    assert len(result.candidates) == 20
    assert all(tree.format.fits(candidate.text) for candidate in result.candidates)


def test_word_lists_are_walked() -> None:
    format = SecretFormat.address("lives at ")
    tokenizer = CharTokenizer.from_text(*format.covering())
    tree = SecretTree(sharpened(Recurrent(tokenizer.vocab_size), 0), format, tokenizer)
    result = extract(tree, "beam", top_k=5, width=50)
    assert all(format.fits(candidate.text) for candidate in result.candidates)


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """A test run that was started in the background has a SIGINT that is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.parametrize("algorithm", ["shortest_path", "brute_force", "beam", "sampling"])
def test_progress_and_interruption(algorithm: str) -> None:
    """Ctrl-C returns what was found so far, marked as not optimal."""
    seen: list[tuple[int, int, float]] = []

    def press_ctrl_c(expansions: int, open_nodes: int, best: float) -> None:
        seen.append((expansions, open_nodes, best))
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    settings = {"sampling": {"samples": 60_000}, "beam": {"width": 10}}.get(algorithm, {})
    tree = CASES[0].tree(batch_size=4)
    if algorithm == "sampling":
        tree = CASES[0].tree()
    result = extract(tree, algorithm, progress=press_ctrl_c, **settings)
    assert result.ended_by == "interrupt"
    assert not result.optimal
    assert len(seen) == 3
    assert [expansions for expansions, _, _ in seen] == sorted(expansions for expansions, _, _ in seen)
    assert result.lower_bound <= cheapest(CASES[0], 1)[0][1] + 1e-9


def test_an_extraction_survives_json(tmp_path: Path) -> None:
    result = extract(CASES[0].tree(), top_k=3, known="my pin is 1")
    result.save(tmp_path / "found.json", reveal=True)
    assert Extraction.load(tmp_path / "found.json") == result
    everything = replace(result, lower_bound=math.inf)  # JSON has no word for it
    everything.save(tmp_path / "found.json", reveal=True)
    assert Extraction.load(tmp_path / "found.json") == everything
    (tmp_path / "found.json").write_text('{"version": 1}')
    with pytest.raises(ManifestError, match=r"found\.json: walks_until_target is missing; expected this field"):
        Extraction.load(tmp_path / "found.json")
    (tmp_path / "found.json").write_text('{"version": 7}')
    with pytest.raises(ManifestError, match=r"found\.json: version is 7; expected 1"):
        Extraction.load(tmp_path / "found.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "guess"}, "algorithm is 'guess'; expected one of 'shortest_path', 'brute_force', 'beam'"),
        ({"width": 3}, "width is 3; expected a setting of 'shortest_path', which has budget, seconds, largest_batch"),
        ({"top_k": 0}, "top_k is 0"),
        ({"budget": 0}, "budget is 0"),
        ({"largest_batch": 0}, "largest_batch is 0"),
        ({"stop": "never"}, "stop is 'never'"),
        ({"memory": 0}, "memory is 0"),
        ({"algorithm": "beam", "width": 0}, "width is 0"),
        ({"algorithm": "sampling", "samples": 0}, "samples is 0"),
        ({"algorithm": "sampling", "temperature": 0.0}, "temperatures"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        extract(CASES[0].tree(), **options)


def test_tokens_that_the_model_masks_out_are_not_the_cheapest() -> None:
    model = Constant(CHARS.vocab_size)
    with torch.no_grad():
        model.logits[CHARS.encode("7")[0]] = torch.finfo(torch.float32).min
    result = extract(SecretTree(model, SecretFormat("pin ####"), CHARS), top_k=3)
    assert "7" not in "".join(candidate.text for candidate in result.candidates)
    assert result.candidates[0].bits < 100


def test_a_token_over_the_end_of_the_prompt_that_few_secrets_have() -> None:
    """Only one of 10,000 secrets is spelled with it: the root must leave room for it all the same."""
    tokenizer = MergingTokenizer(CHARACTERS, [" 1237"])
    tree = SecretTree(sharpened(Recurrent(tokenizer.vocab_size), 0), SecretFormat("pin is ####"), tokenizer)
    assert tree.spelling.root_text == "pin is"
    assert tokens_of(tree.paths(["pin is 1237"])[0]) == tokenizer.encode(" 1237")
    assert sum(len(leaves.costs) for leaves in enumerate_leaves(tree)) == 10_000


def test_a_known_beginning_of_a_known_beginning() -> None:
    part = CASES[0].tree().starting_with("my pin is 1")
    assert extract(part, known="my pin is 12").candidates[0].text.startswith("my pin is 12")
    with pytest.raises(SecretError, match="expected a beginning of secrets that begin as all of this tree do"):
        extract(part, known="my pin is 2")


@pytest.mark.parametrize("limit", [300_000, 1_000_000])
def test_states_and_open_nodes_together_stay_within_the_limit(limit: int) -> None:
    """What the search itself counts; the peak of a whole process is in the benchmarks."""
    torch.manual_seed(1)
    tree = SecretTree(Recurrent(CHARS.vocab_size).eval(), SecretFormat("n " + "#" * 9), CHARS)
    search = _Search(tree, 1, limit, 64)
    search.begin()
    while search.bytes_without_states <= limit and search.expansions < 20_000:
        search.expand_batch(10**9)
        held = search._pool.nbytes
        assert held == 0 or held + search.bytes_without_states <= 1.1 * limit
    assert search.expansions > 500
