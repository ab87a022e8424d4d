"""Added tokens are cut out of a text before all else: the tree holds every secret as the tokenizer spells it, once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from lightning_exposure import SecretFormat, SecretTree, extract
from lightning_exposure.errors import ModelError, TokenizerError
from lightning_exposure.extraction import Extraction
from lightning_exposure.tokenization import _completeness as certificate
from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.paths import as_rows, tokens_of
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.walks import best_first, enumerate_leaves
from tests import oracle
from tests.tokenization.added_token_models import format_of, tokenizer_of
from tests.tokenization.subword_models import KINDS, automaton_paths, oracle_costs
from tests.toys import Recurrent, sharpened


def with_added(kind: str, *added: AddedToken | str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(KINDS[kind]().to_str())
    for token in added:
        is_special = isinstance(token, AddedToken) and token.special
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)([token])
    return tokenizer


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text without what is put behind it."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.no_truncation()
    whole, bare = plain.encode(text).ids, plain.encode(text, add_special_tokens=False).ids
    ends = len(whole) - next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare) - len(bare)
    return whole[: len(whole) - ends]


def assert_holds_every_secret_once(spelling: Spelling, format: SecretFormat, tokenizer: Tokenizer) -> None:
    begin = len(spelling.root)
    spelled = {text: spell(tokenizer, text) for text in oracle.all_texts(format)}
    assert all(tokens[:begin] == spelling.root for tokens in spelled.values())
    expected = {tuple(tokens[begin:]): text for text, tokens in spelled.items()}
    found = [tuple(path) for path in automaton_paths(spelling)]
    assert len(set(found)) == len(found)
    if not spelling.exact:
        canonical = spelling.canonical(as_rows(found))
        found = [path for path, is_canonical in zip(found, canonical, strict=True) if is_canonical]
    assert set(found) == expected.keys()
    assert len(found) == format.size == spelling.size
    assert all(spelling.text(path) == text for path, text in expected.items())


class TestTheTreeHoldsEverySecretOnce:
    """The leaves of the tree are the encodings of all secrets, whatever the tokenizer cuts out of them."""

    @pytest.mark.parametrize("kind", ["bytes", "characters", "unigram", "wordpiece"])
    @pytest.mark.parametrize("by_theory", [False, True], ids=["looked up", "not looked up"])
    def test_of_random_tokenizers_and_formats(
        self, kind: str, by_theory: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if by_theory:  # as if the formats were too large to look all secrets up
            monkeypatch.setattr(certificate, "LARGEST_LOOKED_UP", 0)
            monkeypatch.setattr(certificate, "LARGEST_LOOKED_UP_TWICE", 0)
        outcomes: Counter[str] = Counter()
        for seed in range(60):
            format = format_of(seed)
            if format is None or format.size > 150:
                continue
            tokenizer = tokenizer_of(7000 + seed, kind)
            try:
                spelling = Spelling(format, tokenizer)
            except TokenizerError:
                outcomes["refused"] += 1
                continue
            assert spelling.automaton.paths is not None
            if spelling.automaton.paths > 20_000:
                continue  # they would have to be compared one by one
            assert_holds_every_secret_once(spelling, format, tokenizer)
            assert by_theory or spelling.rests_on == ""
            outcomes["held"] += 1
        assert outcomes["held"] >= 8, outcomes

    @pytest.mark.parametrize(
        "added",
        [
            AddedToken("pin", lstrip=True),
            AddedToken("pin", rstrip=True),
            AddedToken("pin", single_word=True),
            AddedToken("pin", lstrip=True, rstrip=True, single_word=True),
            AddedToken("pin", lstrip=True, normalized=False),
            AddedToken("pin", lstrip=True, special=True),
            AddedToken(" pin"),
            AddedToken("d p", lstrip=True),
            AddedToken("in", lstrip=True),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_of_a_blank_of_letters(self, kind: str, added: AddedToken) -> None:
        tokenizer, format = (
            with_added(kind, added),
            SecretFormat("my word {a}{b}{c}", a=list("pqi"), b=list("in"), c=list("nx")),
        )
        spelling = Spelling(format, tokenizer)
        assert_holds_every_secret_once(spelling, format, tokenizer)
        assert spelling.rests_on == ""

    @pytest.mark.parametrize(
        "contents", [["12"], ["1", "12", "123"], ["12", "21"], ["7 "], ["-", "--"], [" "]], ids=str
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_of_digits_prefixes_of_each_other_and_overlapping_ones(self, kind: str, contents: list[str]) -> None:
        tokenizer = with_added(kind, *contents)
        format = SecretFormat("code {a}-{b} {c}{d}", a=["1", "12", "123"], b=list("127"), c=list("12"), d=list("123"))
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    def test_of_a_prompt_whose_last_space_a_token_swallows(self) -> None:
        tokenizer = with_added("byte-level BPE", AddedToken("is", rstrip=True), AddedToken("9", lstrip=True))
        format = SecretFormat("my pin is ##")
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    def test_of_a_token_that_is_there_or_not_for_what_follows_the_prompt(self) -> None:
        tokenizer = with_added("byte-level BPE", AddedToken("pin", single_word=True))
        format = SecretFormat("my pin{x}{y}", x=[" ", "-", "s"], y=list("12"))
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    def test_of_a_token_that_is_found_in_another_case_only(self) -> None:
        """PIN becomes pin, and is found in texts without a capital letter: no count of paths would show it."""
        tokenizer = with_added("byte-level BPE", AddedToken("PIN", normalized=True))
        tokenizer.normalizer = normalizers.Lowercase()
        format = SecretFormat("my word {a}{b}{c}", a=list("pqi"), b=list("in"), c=list("nx"))
        assert tokenizer.token_to_id("PIN") in spell(tokenizer, "word pin")
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    def test_of_a_token_that_the_model_finds_as_well(self) -> None:
        """It is in the vocabulary, and added as a single word: the model finds it inside of words."""
        symbols = [*"abpinĠ", "pi", "pin"]
        merges = [("p", "i"), ("pi", "n")]
        tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_tokens([AddedToken("pin", single_word=True, lstrip=True)])
        format = SecretFormat("a {x}", x=["pin", "bpin", "pina", "pi", "b pina"])
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    def test_with_a_known_beginning(self) -> None:
        tokenizer = with_added("byte-level BPE", AddedToken("pin", lstrip=True))
        format = SecretFormat("word {x}{y}", x=["pin", "pan", "p"], y=list("0123456789"))
        spelling = Spelling(format, tokenizer)
        part = spelling.starting_with("word pi")
        assert part.size == 10
        secrets = [text for text in oracle.all_texts(format) if text.startswith("word pi")]
        assert {part.text(tokens_of(row)) for row in part.paths(secrets)} == set(secrets)

    def test_secrets_that_differ_in_spaces_that_only_some_tokens_swallow(self) -> None:
        tokenizer = with_added("byte-level BPE", AddedToken("pin", lstrip=True))
        format = SecretFormat("my{x}", x=[" pin 1", "pin 2", " pan 1", "  pin 3"])
        spelling = Spelling(format, tokenizer)
        assert_holds_every_secret_once(spelling, format, tokenizer)
        part = spelling.starting_with("my p")
        assert [part.text(path) for path in automaton_paths(part)] in (
            ["my pin 1", "my pan 1"],
            ["my pan 1", "my pin 1"],
        )

    def test_what_becomes_the_same_is_refused(self) -> None:
        tokenizer = with_added("byte-level BPE", AddedToken("pin", lstrip=True))
        with pytest.raises(TokenizerError, match=r"spells the secrets 'my ?pin' and 'my ?pin' alike"):
            Spelling(SecretFormat("my{x}", x=["pin", " pin", " pan"]), tokenizer)


@pytest.fixture(scope="module")
def case() -> tuple[SecretTree, dict[str, float]]:
    """A model that likes the added token best, and what each secret costs."""
    tokenizer = with_added("byte-level BPE", AddedToken("pin", lstrip=True))
    format = SecretFormat("word ??{x}", x=list("nmo"))
    model = sharpened(Recurrent(tokenizer.get_vocab_size(), width=8), seed=3, dtype=torch.float64)
    with torch.no_grad():
        next(p for p in reversed(list(model.parameters())) if p.dim() == 1)[tokenizer.token_to_id("pin")] += 40
    tree = SecretTree(model, format, tokenizer)
    return tree, oracle_costs(model, format, tokenizer, len(tree.spelling.root))


class TestNumbers:
    """What was wrong: a secret was missing, and the best of the others was called the best of all."""

    def test_the_best_secret_is_found_and_the_proof_says_what_it_rests_on(self, case: Any) -> None:
        tree, costs = case
        best = min(costs, key=costs.__getitem__)
        assert best == "word pin"
        for algorithm in ("shortest_path", "brute_force"):
            found = extract(tree, algorithm)
            assert found.optimal
            assert found.candidates[0].text == best
            assert found.candidates[0].bits == pytest.approx(costs[best])
            assert found.rests_on == "the tree was counted: it holds every secret once"
            assert Extraction.from_dict(found.to_dict()) == found
        assert Extraction.from_dict(found.to_dict()).rests_on == found.rests_on
        assert extract(tree, "sampling", samples=10).rests_on == ""

    def test_every_secret_costs_what_one_pass_says(self, case: Any) -> None:
        tree, costs = case
        found = {
            tree.text(tokens_of(path)): cost
            for leaves in enumerate_leaves(tree)
            for path, cost in zip(leaves.paths, leaves.costs.tolist(), strict=True)
        }
        assert found == pytest.approx(costs)

    def test_special_tokens_in_secrets_need_logits(self) -> None:
        tokenizer = with_added("byte-level BPE", AddedToken("pin", special=True))
        format = SecretFormat("word {x}", x=["pin", "pan"])
        tree = SecretTree(Recurrent(tokenizer.get_vocab_size() - 1), format, tokenizer)
        with pytest.raises(ModelError, match="Model and tokenizer must belong together"):
            best_first(tree)


class TestWhatATreeRestsOn:
    def test_a_tree_that_was_counted_is_certain(self) -> None:
        tree = SecretTree(Recurrent(800), SecretFormat("my ssn is ###-##-####"), KINDS["byte-level BPE"]())
        assert tree.spelling.exact
        assert tree.rests_on == ""

    def test_a_tree_that_is_too_large_was_tried(self) -> None:
        tokenizer = with_added("byte-level BPE", AddedToken("pin", lstrip=True))
        tree = SecretTree(Recurrent(tokenizer.get_vocab_size(), width=4), SecretFormat("word ?????"), tokenizer)
        assert "could not be counted" in tree.rests_on
        assert "secrets that were drawn at random are all in it" in tree.rests_on
        assert tree.starting_with("word pi").rests_on == ""  # 17,576 are left: all of them were looked up
        assert tree.text(tokens_of(tree.paths(["word pinxy"])[0])) == "word pinxy"
        found = extract(tree, top_k=2)
        assert found.optimal
        assert found.rests_on == tree.rests_on

    def test_a_large_tree_that_lacks_secrets_with_an_added_token_is_refused(self) -> None:
        """One secret in thousands has it, so that no few hundred drawn at random would show it."""
        tokenizer = with_added("byte-level BPE", AddedToken("pin", lstrip=True, normalized=False))
        tokenizer.normalizer = normalizers.Strip()  # and it takes the spaces off what stands beside the token
        with pytest.raises(TokenizerError, match="which does not fit the format"):
            Spelling(SecretFormat("word {gap}????{end}", gap=["", "x "], end=["", " x"]), tokenizer)

    def test_a_walk_over_a_tree_that_lacks_secrets_ends_with_an_error(self) -> None:
        tokenizer = KINDS["byte-level BPE"]()
        tree = SecretTree(Recurrent(tokenizer.get_vocab_size()), SecretFormat("my pin is ##"), tokenizer)
        paths = [tokens_of(row) for row in tree.paths(oracle.all_texts(tree.format))]
        tree.automaton = TokenAutomaton.of_paths(paths[1:])
        with pytest.raises(TokenizerError, match=r"the tree has 99 secrets, but .* has 100"):
            extract(tree, "brute_force")


def test_an_automaton_of_given_paths_has_exactly_those() -> None:
    paths = [[3, 1], [3, 1, 2], [4], [5, 1, 2], [5, 1]]
    automaton = TokenAutomaton.of_paths(paths)
    assert automaton.paths == 5
    assert (automaton.depth, automaton.shortest, automaton.interruptions) == (3, 1, 1)
    places = automaton.walk(as_rows([*paths, [3], [4, 1]]))
    assert automaton.accepting(places[:5]).all()
    assert not automaton.accepting(int(places[5]))
    assert places[6] == -1
    assert automaton.walk(as_rows([[3, 1]]))[0] == automaton.walk(as_rows([[5, 1]]))[0]  # equal places are one
