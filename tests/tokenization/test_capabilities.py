"""A tokenizer is asked for what it can do, whatever its class: with `encode` and `decode` alone it works as well."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from transformers import ByT5Tokenizer

import lightning_exposure
from lightning_exposure import CanarySet, CharTokenizer, SecretFormat, WordTokenizer
from lightning_exposure.errors import TokenizerError
from lightning_exposure.measuring.planted import own_tokens
from lightning_exposure.tokenization import (
    HasBatches,
    HasCuts,
    HasPieces,
    HasSpans,
    HuggingFaceTokenizer,
    Span,
    Tokenizer,
    capability,
)
from lightning_exposure.tokenization.paths import tokens_of
from lightning_exposure.tokenization.protocol import (
    HasAddedTokens,
    HasAlikeCharacters,
    HasOwnCheck,
    HasSpellingRules,
    HasSurroundings,
)
from lightning_exposure.tokenization.spelling import Spelling
from tests.tokenization.subword_models import KINDS, byte_level

PIN = SecretFormat("my pin is ##-##")
PACKAGE = Path(lightning_exposure.__file__).parent


class Pairs:
    """One's own tokenizer, with nothing but what it must have: two digits are a token, and each other character."""

    def __init__(self) -> None:
        self.vocabulary = [*"my pinsabc-0123456789", *(f"{number:02d}" for number in range(100))]
        self.vocabulary = list(dict.fromkeys(self.vocabulary))
        self.asked: list[str] = []

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def _cut(self, text: str) -> Iterator[tuple[str, int]]:
        at = 0
        while at < len(text):
            length = 2 if len(text[at : at + 2]) == 2 and text[at : at + 2].isdecimal() else 1
            yield text[at : at + length], at
            at += length

    def encode(self, text: str, /) -> list[int]:
        self.asked.append("encode")
        return [self.vocabulary.index(part) for part, _ in self._cut(text)]

    def decode(self, ids: Sequence[int], /) -> str:
        self.asked.append("decode")
        return "".join(self.vocabulary[token] for token in ids)


class WithBatches(Pairs):
    def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]:
        self.asked.append("encode_batch")
        return [[self.vocabulary.index(part) for part, _ in self._cut(text)] for text in texts]


class WithSpans(Pairs):
    def spans(self, text: str, /) -> list[Span]:
        self.asked.append("spans")
        return [Span(self.vocabulary.index(part), at, at + len(part)) for part, at in self._cut(text)]


class WithPieces(Pairs):
    def pieces(self) -> list[bytes | None]:
        self.asked.append("pieces")
        return [string.encode() for string in self.vocabulary]


class WithCuts(Pairs):
    def cuts(self, texts: Sequence[str], /) -> list[set[int]]:
        self.asked.append("cuts")
        return [{at for _, at in self._cut(text)} for text in texts]

    def alike(self, characters: set[str], /) -> dict[str, str]:
        self.asked.append("alike")
        return {character: "0" for character in characters if character.isdecimal()}


class WithEverything(WithBatches, WithSpans, WithPieces, WithCuts):
    pass


ALL = [Pairs, WithBatches, WithSpans, WithPieces, WithCuts, WithEverything]


class TestATokenizerOfOnesOwn:
    @pytest.mark.parametrize("kind", ALL)
    def test_spells_the_same_whatever_it_can_do(self, kind: type[Pairs]) -> None:
        plain, able = Spelling(PIN, Pairs()), Spelling(PIN, kind())
        secrets = PIN.sample(50, seed=0)
        assert able.root == plain.root
        assert able.paths(secrets).tolist() == plain.paths(secrets).tolist()
        assert [able.text(tokens_of(row)) for row in able.paths(secrets)] == secrets
        assert able.canonical(able.paths(secrets)).all()

    @pytest.mark.parametrize(
        ("kind", "method"),
        [(WithBatches, "encode_batch"), (WithSpans, "spans"), (WithPieces, "pieces"), (WithCuts, "cuts")],
    )
    def test_is_asked_for_what_it_brings(self, kind: type[Pairs], method: str) -> None:
        tokenizer = kind()
        Spelling(PIN, tokenizer)
        assert method in tokenizer.asked

    def test_that_spells_batches_spells_secrets_in_batches(self) -> None:
        tokenizer = WithBatches()
        spelling = Spelling(PIN, tokenizer)
        tokenizer.asked.clear()
        spelling.paths(PIN.sample(1000, seed=0))
        assert tokenizer.asked == ["encode_batch"]

    def test_that_tells_its_pieces_decodes_nothing_to_find_them(self) -> None:
        tokenizer = WithEverything()
        Spelling(PIN, tokenizer)
        assert "decode" not in tokenizer.asked

    def test_that_tells_its_cuts_has_fewer_paths(self) -> None:
        class CutsAtDashes(WithCuts):
            """A dash with the digits behind it is a token that its cuts rule out."""

            def __init__(self) -> None:
                super().__init__()
                self.vocabulary += [f"-{number:02d}" for number in range(100)]

        tokenizer, without = CutsAtDashes(), Pairs()
        without.vocabulary = tokenizer.vocabulary
        # Two digits are one token or two, and without cuts the last two may be one token with the dash as well.
        assert Spelling(PIN, tokenizer).automaton.paths == 2 * 2 * PIN.size
        assert Spelling(PIN, without).automaton.paths == 2 * 3 * PIN.size

    def test_without_telling_which_characters_are_alike_only_few_texts_show_its_cuts(self) -> None:
        class NothingAlike(WithCuts):
            def alike(self, characters: set[str], /) -> dict[str, str]:
                return {}

        assert Spelling(PIN, WithCuts())._rules.cuts is not None
        assert Spelling(PIN, NothingAlike())._rules.cuts is None
        assert Spelling(SecretFormat("my pin is ##"), NothingAlike())._rules.cuts is not None

    def test_surroundings_belong_to_the_root(self) -> None:
        class Led(WithSpans):
            lead, before = (7,), ""

            def encode(self, text: str, /) -> list[int]:
                return [7, *super().encode(text)]

            def decode(self, ids: Sequence[int], /) -> str:
                return super().decode(ids[1:])

            def spans(self, text: str, /) -> list[Span]:
                return [Span(7, 0, 0), *super().spans(text)]

        spelling = Spelling(PIN, Led())
        assert spelling.root == [7, *Spelling(PIN, Pairs()).root]
        text = CanarySet.draw(PIN, repetitions=[1], seed=0)[0].text
        read, measured = own_tokens(spelling, text)
        assert [*read, *measured] == Pairs().encode(text)


class TestNothingIsBelievedBlindly:
    def test_batches_that_are_spelled_differently_are_refused(self) -> None:
        class Wrong(WithBatches):
            def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]:
                return [tokens[::-1] for tokens in super().encode_batch(texts)]

        with pytest.raises(TokenizerError, match=r"encode_batch of Wrong spells 'my pin is .*but encode as"):
            Spelling(PIN, Wrong())

    def test_spans_of_other_tokens_are_refused(self) -> None:
        class Wrong(WithSpans):
            def spans(self, text: str, /) -> list[Span]:
                return super().spans(text)[::-1]

        with pytest.raises(TokenizerError, match="spans of Wrong has other tokens for 'my pin is"):
            Spelling(PIN, Wrong())

    def test_wrong_pieces_and_cuts_are_not_used(self) -> None:
        class WrongPieces(WithPieces):
            def pieces(self) -> list[bytes | None]:
                return super().pieces()[::-1]

        class WrongCuts(WithCuts):
            def cuts(self, texts: Sequence[str], /) -> list[set[int]]:
                return [set(range(len(text))) for text in texts]  # no token of two digits would be left

        expected = Spelling(PIN, Pairs()).paths(["my pin is 12-34"]).tolist()
        for wrong in (WrongPieces, WrongCuts):
            spelling = Spelling(PIN, wrong())
            assert spelling._rules.cuts is None
            assert spelling.paths(["my pin is 12-34"]).tolist() == expected

    def test_a_text_that_no_batch_holds_gets_the_error_that_names_the_format(self) -> None:
        class Strict(CharTokenizer):
            def encode_batch(self, texts: Sequence[str], /) -> list[list[int]]:
                return [self.encode(text) for text in texts]

        with pytest.raises(TokenizerError, match=r"format 'my pin is ##-##' needs what the tokenizer cannot spell"):
            Spelling(PIN, Strict.from_text("my pin is 012345678-"))


class TestWhoHasWhat:
    def test_a_plain_tokenizer_has_nothing_more(self) -> None:
        kinds = (HasBatches, HasCuts, HasPieces, HasSpans, HasAddedTokens, HasSurroundings, HasOwnCheck)
        assert isinstance(Pairs(), Tokenizer)
        assert [capability(Pairs(), kind) for kind in kinds] == [None] * len(kinds)

    def test_characters_have_pieces(self) -> None:
        tokenizer = CharTokenizer.from_text("aé", unknown=True)
        has_pieces = capability(tokenizer, HasPieces)
        assert has_pieces is tokenizer
        assert dict(zip(tokenizer.vocabulary, tokenizer.pieces(), strict=True)) == {
            "<unk>": None, "a": b"a", "é": "é".encode(),
        }  # fmt: skip
        assert capability(tokenizer, HasSpans) is None

    def test_words_add_no_fixed_text(self) -> None:
        assert capability(WordTokenizer.from_text("a b"), HasPieces) is None

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_fast_tokenizer_of_hugging_face_has_all(self, kind: str) -> None:
        tokenizer = HuggingFaceTokenizer(KINDS[kind]())
        for wanted in (HasBatches, HasCuts, HasPieces, HasSpans, HasAddedTokens, HasAlikeCharacters, HasSpellingRules):
            assert capability(tokenizer, wanted) is tokenizer

    def test_a_slow_one_has_batches_alone(self) -> None:
        tokenizer = HuggingFaceTokenizer(ByT5Tokenizer())
        assert capability(tokenizer, HasBatches) is tokenizer
        assert capability(tokenizer, HasSurroundings) is tokenizer
        for wanted in (HasCuts, HasPieces, HasSpans, HasAddedTokens, HasAlikeCharacters, HasSpellingRules):
            assert capability(tokenizer, wanted) is None

    def test_spans_and_cuts_of_hugging_face_are_those_of_the_tokenizer(self) -> None:
        tokenizer = HuggingFaceTokenizer(byte_level())
        text = "my pin is 407"
        has_spans, has_cuts = capability(tokenizer, HasSpans), capability(tokenizer, HasCuts)
        assert has_spans is not None
        assert has_cuts is not None
        spans = has_spans.spans(text)
        assert [token for token, _, _ in spans] == tokenizer.encode(text)
        assert "".join(text[start:end] for _, start, end in spans) == text
        assert has_cuts.cuts([text]) == [{2, 6, 9}]


def test_nobody_asks_for_the_class_of_a_tokenizer() -> None:
    """`isinstance(tokenizer, HuggingFaceTokenizer)` stands in its own file, if anywhere."""
    own_file = PACKAGE / "tokenization" / "huggingface" / "tokenizer.py"
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != own_file
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        and any("Tokenizer" in name for name in map(ast.unparse, node.args[1:]))
        and ast.unparse(node.args[1]) not in ("Tokenizer", "SymbolTokenizer")
    ]
    assert found == []


def test_the_page_runs() -> None:
    page = (PACKAGE.parent / "docs" / "api" / "tokenization.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(code, {})
