"""No canonical path is ever left out, and hardly any other is left in."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.errors import TokenizerError
from lightning_exposure.secrets.formats.graph import walk
from lightning_exposure.tokenization._spelling_rules import spelling_rules
from lightning_exposure.tokenization._vocabulary import FittingTokens, Vocabulary
from lightning_exposure.tokenization.canonical.bpe import MergeRule, MergeTable
from lightning_exposure.tokenization.graphs import pretoken_cuts
from lightning_exposure.tokenization.graphs import tokens as automata
from lightning_exposure.tokenization.graphs.bytes import ByteTexts
from lightning_exposure.tokenization.graphs.pretoken_cuts import CUT, MAYBE_CUT, NO_CUT, PretokenCuts
from lightning_exposure.tokenization.graphs.texts import Texts
from lightning_exposure.tokenization.graphs.tokens import TokenAutomaton
from lightning_exposure.tokenization.huggingface._alike_characters import alike_characters
from lightning_exposure.tokenization.huggingface._pieces import byte_alphabet
from lightning_exposure.tokenization.huggingface._rules_from_file import cuts_of
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.tokenization.paths import as_rows, tokens_of
from lightning_exposure.tokenization.spelling import Spelling
from lightning_exposure.walks import best_first, enumerate_leaves
from tests import oracle
from tests.tokenization.subword_models import (
    KINDS,
    LLAMA_3,
    automaton_paths,
    byte_level,
    metaspace_bpe,
    random_format,
    random_tokenizer,
    spell,
)
from tests.toys import Recurrent, sharpened

SSN = "my ssn is ###-##-####"
every_kind = pytest.mark.parametrize("kind", KINDS)


def all_spellings(spelling: Spelling) -> TokenAutomaton:
    """The automaton that leaves nothing out."""
    return TokenAutomaton(spelling._fitting, spelling._start)


def assert_holds_every_secret_once(spelling: Spelling, format: SecretFormat, tokenizer: Tokenizer) -> None:
    """The canonical paths of an automaton are those of all secrets, each once."""
    begin = len(spelling.root)
    spelled = {text: spell(tokenizer, text) for text in oracle.all_texts(format)}
    assert all(tokens[:begin] == spelling.root for tokens in spelled.values())
    expected = {tuple(tokens[begin:]): text for text, tokens in spelled.items()}
    found = [tuple(path) for path in automaton_paths(spelling)]
    assert len(set(found)) == len(found)
    assert expected.keys() <= set(found), "a canonical path was left out"
    canonical = spelling.canonical(as_rows(found)) if not spelling.exact else np.ones(len(found), dtype=bool)
    kept = {path for path, is_canonical in zip(found, canonical, strict=True) if is_canonical}
    assert kept == expected.keys()
    assert all(spelling.text(path) == text for path, text in expected.items())


class TestNothingIsLeftOut:
    @every_kind
    @pytest.mark.parametrize(
        "format",
        [
            SecretFormat("my pin is ###"),
            SecretFormat("ssn ##-##"),
            SecretFormat("key {word}-?#", word=["", "a", "an", "and", "x-"]),
            SecretFormat("it's {who}'s ##.", who=["ana", "bob", "zoe"]),
            SecretFormat("card ## ##", checksum="luhn"),
        ],
        ids=str,
    )
    def test_of_formats_of_a_hundred_to_ten_thousand(self, kind: str, format: SecretFormat) -> None:
        tokenizer = KINDS[kind]()
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    @every_kind
    @pytest.mark.slow
    def test_of_a_hundred_thousand(self, kind: str) -> None:
        tokenizer, format = KINDS[kind](), SecretFormat("code #####")
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    @pytest.mark.parametrize("block", range(8))
    def test_of_random_vocabularies_and_formats(self, block: int) -> None:
        tried = 0
        for seed in range(80 * block, 80 * block + 80):
            format, tokenizer = random_format(seed), random_tokenizer(1000 + seed)
            if format is None:
                continue
            try:
                spelling = Spelling(format, tokenizer)
            except TokenizerError as refusal:  # spaces that it drops, or a prompt inside a token
                if "secrets of" in str(refusal):  # a canonical path was lost
                    raise
                continue
            assert_holds_every_secret_once(spelling, format, tokenizer)
            # What is known of canonical paths was used: a way of spelling in which one is lost is not taken.
            best = next(spelling_rules(spelling.tokenizer, Texts.of(format, spelling._ahead), spelling._fixed, 0))
            assert (spelling._rules.canonical is None) == (best.canonical is None), seed
            tried += 1
        assert tried >= 10

    def test_with_a_known_beginning(self) -> None:
        for kind, make in KINDS.items():
            tokenizer, format = make(), SecretFormat("ssn ###-#")
            part = Spelling(format, tokenizer).starting_with("ssn 12")
            secrets = [text for text in oracle.all_texts(format) if text.startswith("ssn 12")]
            assert part.size == len(secrets) == 100
            paths = {tuple(path) for path in automaton_paths(part)}
            assert {tuple(spell(tokenizer, text)[len(part.root) :]) for text in secrets} <= paths, kind


class TestHowMuchIsLeftIn:
    @pytest.mark.parametrize("kind", ["byte-level BPE", "WordPiece"])
    def test_for_merges_and_longest_matches_every_path_is_canonical(self, kind: str) -> None:
        """As many paths as secrets, and no canonical one is left out: so there are no others."""
        spelling = Spelling(SecretFormat(SSN), KINDS[kind]())
        assert spelling.exact
        assert spelling.automaton.paths == 10**9
        everything = all_spellings(spelling).paths
        assert everything is not None
        assert everything > 10 * 10**9

    def test_for_best_segmentations_nearly_every_path_is(self) -> None:
        spelling = Spelling(SecretFormat(SSN), KINDS["Unigram"]())
        assert spelling.automaton.paths is not None
        assert 10**9 <= spelling.automaton.paths < 1.6 * 10**9
        everything = all_spellings(spelling).paths
        assert everything is not None
        assert everything > 10 * 10**9

    @pytest.mark.parametrize(
        "format",
        [SecretFormat("call {who} at ###", who=["José", "Zoë", "Ana"]), SecretFormat("my pin is ####")],
        ids=["several bytes", "digits"],
    )
    @pytest.mark.parametrize("make", [byte_level, metaspace_bpe])
    def test_nor_are_there_others_without_cuts_or_with_characters_of_several_bytes(
        self, make: Any, format: SecretFormat
    ) -> None:
        assert Spelling(format, make()).exact

    def test_tokens_that_reach_over_a_cut_are_not_used(self) -> None:
        vocabulary = {"n": 0, "Ġ": 1, "1": 2, "-": 3, "1-": 4, "-1": 5, "Ġ1": 6}
        tokenizer = Tokenizer(models.BPE(vocabulary, [("1", "-"), ("-", "1"), ("Ġ", "1")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        spelling = Spelling(SecretFormat("n {x}-1", x=["1", "11"]), tokenizer)
        assert spelling.exact
        assert not {4, 5} & {token for path in automaton_paths(spelling) for token in path}


class TestPlacesFoundOnTheWay:
    """Too many places to find them all at once: they are found as walks come to them."""

    @every_kind
    def test_walks_give_the_same(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        tokenizer, format = KINDS[kind](), SecretFormat("my pin is ###")
        model = sharpened(Recurrent(tokenizer.get_vocab_size(), width=8), seed=1)
        whole = SecretTree(model, format, tokenizer)
        monkeypatch.setattr(automata, "LARGEST_NUMBER_OF_EDGES", 5)
        tree = SecretTree(model, format, tokenizer)
        assert tree.automaton.paths is None
        assert tree.automaton.depth >= whole.automaton.depth
        assert tree.automaton.shortest <= whole.automaton.shortest

        def costs(of: SecretTree) -> dict[str, float]:
            return {
                of.text(tokens_of(path)): cost
                for leaves in enumerate_leaves(of)
                for path, cost in zip(leaves.paths, leaves.costs.tolist(), strict=True)
            }

        found, expected = costs(tree), costs(whole)
        offset = len(tree.spelling.root) - len(whole.spelling.root)
        assert found.keys() == expected.keys()
        if offset == 0:
            assert found == pytest.approx(expected)
        best, again = best_first(whole).paths[0], best_first(tree).paths[0]
        assert whole.text(tokens_of(best)) == tree.text(tokens_of(again))


class TestMerges:
    def test_a_token_may_follow_another_if_merging_their_texts_gives_the_two(self) -> None:
        tokenizer = KINDS["byte-level BPE"]()
        table = MergeTable(HuggingFaceTokenizer(tokenizer).file.config["model"])  # type: ignore[union-attr]
        numbers = {token: text.encode() for text, token in tokenizer.get_vocab().items() if text.isdecimal()}
        pieces = [numbers.get(token) for token in range(tokenizer.get_vocab_size())]
        characters = Texts.of(SecretFormat("######"))
        nowhere = [dict.fromkeys(characters.edges(state), NO_CUT) for state in range(len(characters))]
        texts = ByteTexts(characters, nowhere)
        rule = MergeRule(FittingTokens(texts, Vocabulary(pieces, b"0123456789")), table)
        for first, second in product(numbers, numbers):
            state = walk(texts, numbers[first])
            assert state is not None
            may_follow = second in rule.children(state, first)[0]
            spelled = [token.id for token in tokenizer.model.tokenize((numbers[first] + numbers[second]).decode())]
            if len(numbers[first] + numbers[second]) <= 6:
                assert may_follow == (spelled == [first, second])

    def test_a_token_that_its_own_merges_do_not_lead_to_is_never_used(self) -> None:
        # "ab" is merged first, so that "abc" can never be made of "a" and "bc".
        merges = [["a", "b"], ["b", "c"], ["a", "bc"]]
        table = MergeTable({"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}, "merges": merges})
        assert table.spines(5) is None
        spines = table.spines(3)
        assert spines is not None
        assert [symbol.token for symbol in spines.right] == [1, 3]

    def test_symbols_that_never_stand_side_by_side_are_not_merged(self) -> None:
        """The best merge of all, of "a" and "bc", never happens: when "bc" is made, "a" is gone."""
        vocabulary = {letter: i for i, letter in enumerate(["a", "b", "c", "z", "n", "Ġ", "abc", "za", "bc"])}
        tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "bc"), ("z", "a"), ("b", "c")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        format = SecretFormat("n {x}", x=["zabc", "abc"])
        spelling = Spelling(format, tokenizer)
        assert spelling._canonical
        assert_holds_every_secret_once(spelling, format, tokenizer)
        assert [vocabulary["za"], vocabulary["bc"]] in [path[-2:] for path in automaton_paths(spelling)]

    def test_whole_words_may_come_before_merges(self) -> None:
        """As in Llama 3: a pre-token that is a token is one, even if its own merges lead elsewhere."""
        vocabulary = {"n": 0, "-": 1, "1": 2, "2": 3, "12": 4}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        format = SecretFormat("n-{x}", x=["1", "12", "21", "212"])
        spelling = Spelling(format, tokenizer)
        assert spelling._canonical
        assert_holds_every_secret_once(spelling, format, tokenizer)
        assert [4] in list(automaton_paths(spelling))

    def test_merges_are_read_from_old_files_as_well(self) -> None:
        model = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
        assert MergeTable(model).spines(2) is not None


class TestPretokenCuts:
    @staticmethod
    def of(pattern: str, pre_tokenizer: Any, **words: list[str]) -> tuple[Texts, PretokenCuts | None]:
        tokenizer = KINDS["byte-level BPE"]()
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        tokenizer.pre_tokenizer = pre_tokenizer
        file = HuggingFaceTokenizer(tokenizer).file
        assert file is not None
        format = SecretFormat(pattern, **words)
        texts = Texts.of(format)
        return texts, cuts_of(file, texts, len(format.prompt))

    def kinds(self, pattern: str, text: str, pre_tokenizer: Any, **words: list[str]) -> list[int]:
        """Whether a text is cut before each of its characters."""
        texts, cuts = self.of(pattern, pre_tokenizer, **words)
        assert cuts is not None
        return [cuts[walk(texts, text[:i])][text[i]] for i in range(1, len(text))]  # type: ignore[index]

    def test_gpt_2_keeps_spaces_with_what_follows_and_numbers_together(self) -> None:
        expected = [CUT, NO_CUT, NO_CUT, NO_CUT, CUT, CUT, NO_CUT]
        assert self.kinds("a ###-##", "a 123-45", pre_tokenizers.ByteLevel(add_prefix_space=False)) == expected

    def test_llama_3_cuts_digits_into_groups_of_three(self) -> None:
        from tokenizers import Regex

        cut = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        assert self.kinds("n #####", "n 12345", cut) == [CUT, CUT, NO_CUT, NO_CUT, CUT, NO_CUT]

    def test_what_depends_on_the_rest_of_the_text_is_left_open(self) -> None:
        # Three spaces are cut before the last one, if something follows.
        cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
        kinds = self.kinds("a {gap}{end}", "a    1", cut, gap=["   "], end=["1", "\n"])
        assert MAYBE_CUT in kinds

    def test_digits_are_alike_unless_a_pattern_names_one(self) -> None:
        def alike(pattern: str, characters: str = "") -> set[str]:
            part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            return set(alike_characters({"pre_tokenizer": part}, set(characters)).values())

        assert alike(LLAMA_3) == {"0", "a", "A"}
        assert alike(LLAMA_3, "it's") == {"0"}
        assert alike(r"\p{N}{1,3}(?=(?:\p{N}{3})*$)") == {"0", "a", "A"}
        assert alike(r"19\d\d") == {"a", "A"}
        assert alike(r"(\w)\1") == {"a", "A"}
        assert alike("[a-f]+") == {"0", "A"}
        assert alike_characters({"pre_tokenizer": {"type": "SomethingNew"}}, set()) == {}

    def test_tokens_that_are_cut_out_by_their_content_leave_everything_open(self) -> None:
        tokenizer = Tokenizer.from_str(KINDS["byte-level BPE"]().to_str())
        tokenizer.add_tokens(["12"])
        format = SecretFormat("pin ###")
        file = HuggingFaceTokenizer(tokenizer).file
        assert file is not None
        assert cuts_of(file, Texts.of(format), 4) is None
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    def test_so_do_shapes_that_look_like_such_a_token(self) -> None:
        tokenizer = Tokenizer.from_str(KINDS["byte-level BPE"]().to_str())
        tokenizer.add_tokens(["a1"])
        format = SecretFormat("pin {x}", x=["b1", "a2"])  # no "a1", but letters and digits are alike
        file = HuggingFaceTokenizer(tokenizer).file
        assert file is not None
        assert cuts_of(file, Texts.of(format), 4) is None
        assert_holds_every_secret_once(Spelling(format, tokenizer), format, tokenizer)

    def test_too_many_shapes_are_not_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pretoken_cuts, "LARGEST_NUMBER_OF_SHAPES", 2)
        tokenizer, format = KINDS["byte-level BPE"](), SecretFormat("pin {n}#", n=["1", "a1", "b-1", "C 1"])
        spelling = Spelling(format, tokenizer)
        assert spelling._rules.cuts is None
        assert_holds_every_secret_once(spelling, format, tokenizer)


def test_the_byte_alphabet_is_the_tokenizers_own() -> None:
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ((spelled, _),) = cut.pre_tokenize_str("é \n~\u00ad")
    assert bytes(byte_alphabet()[letter] for letter in spelled) == "é \n~\u00ad".encode()


def test_equal_spellings_are_decided_by_the_tokenizer() -> None:
    """Three ones are "11" and "1" or "1" and "11": equally good, so both paths stay, and one of them is no leaf."""
    scores = [("<unk>", 0.0), ("▁", -1.0), ("n", -1.0), ("1", -2.0), ("11", -3.0)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spelling = Spelling(SecretFormat("n {x}", x=["1", "11", "111", "11111"]), tokenizer)
    assert not spelling.exact
    paths = list(automaton_paths(spelling))
    assert sorted(map(spelling.text, paths)) == ["n 1", "n 11", "n 111", "n 111", "n 11111", "n 11111", "n 11111"]
    assert spelling.canonical(as_rows(paths)).sum() == 4


def test_characters_without_a_token_of_their_own_in_a_unigram_model() -> None:
    """They become single bytes, whose scores do not count: nothing is concluded from those."""
    scores = [("<unk>", 0.0), ("▁", -1.0), ("n", -1.0), ("1", -2.0), ("2", -2.5), ("12", -3.0)]
    scores += [(f"<0x{byte:02X}>", -0.5) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    format = SecretFormat("n {x}", x=["1é", "12", "é", "21é12"])
    spelling = Spelling(format, tokenizer)
    assert spelling._rules.canonical is not None
    assert not spelling._canonical
    assert_holds_every_secret_once(spelling, format, tokenizer)


def test_the_past_of_a_path_is_forgotten_where_nothing_goes_on() -> None:
    """However the three digits are spelled, what follows the dash is the same: 1 place there, not one per token."""
    spelling = Spelling(SecretFormat("n ###-#"), KINDS["byte-level BPE"]())
    tokens, targets = spelling.automaton.children(spelling.automaton.start)
    whole = [target for token, target in zip(tokens, targets, strict=True) if len(spelling._pieces[token]) == 4]
    assert len(set(whole)) <= 1
