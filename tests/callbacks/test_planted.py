"""What the data module plants has to be what the callbacks measure: looked at before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader

from lightning_exposure import (
    AuditCallback,
    CanaryDataModule,
    CanarySet,
    ExposureCallback,
    ExtractionCallback,
    SecretFormat,
)
from lightning_exposure.callbacks._planted import check_copies, check_tokens
from lightning_exposure.data import TextDataModule
from lightning_exposure.errors import DataError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.tokenization import CharTokenizer, WordTokenizer
from lightning_exposure.tokenization.huggingface.tokenizer import HuggingFaceTokenizer
from lightning_exposure.tokenization.spelling import Spelling
from tests.callbacks.setups import CHARS, TEXT, Model, trainer
from tests.tokenization import subword_models

PIN = SecretFormat("my pin is ####")
ALL = CharTokenizer.from_text(TEXT, TEXT.upper(), "my pin is MY PIN IS \n", "abcdefghijklmnopqrstuvwxyz")
CANARIES = CanarySet.draw(PIN, repetitions=[0, 2, 5], seed=0)
LONG = 24


def planting(encode: Callable[[str], Any], canaries: CanarySet = CANARIES, like: Any = None) -> CanaryDataModule:
    """A data module whose items look like what `encode` gives for any text."""
    items = [encode("the quick brown fox") if like is None else like] * 8
    return CanaryDataModule(DataLoader(items, batch_size=2, collate_fn=list), canaries, encode=encode)


def check(data: Any, tokenizer: Any = ALL, canaries: CanarySet = CANARIES) -> None:
    """What a callback does at `setup`."""
    check_copies(data, canaries)
    for format, members in canaries.by_format().items():
        check_tokens(data, Spelling(format, tokenizer), members)


def ids(text: str) -> torch.Tensor:
    return torch.tensor(ALL.encode(text.ljust(LONG)))


class TestWhatIsFine:
    """The user's business: structure, padding, and whatever stands before and behind."""

    @pytest.mark.parametrize(
        "encode",
        [
            ids,
            lambda text: ids(text).tolist(),
            lambda text: ids(text).numpy(),
            lambda text: ids(text).to(torch.int32)[None],
            lambda text: ids(text)[:, None],
            lambda text: list(ids(text)),
            lambda text: (ids(text)[:-1], ids(text)[1:]),
            # The last digit is a target only.
            lambda text: (torch.tensor(ALL.encode(text))[:-1], torch.tensor(ALL.encode(text))[1:]),
            lambda text: {"input_ids": ids(text), "attention_mask": torch.ones(LONG, dtype=torch.long)},
            lambda text: {"input_ids": ids(text), "labels": ids(text).where(ids(text) != 0, -100)},
            lambda text: torch.cat([torch.full((5,), 10**6), ids(text), torch.full((3,), -100)]),
            lambda text: ids(f"so i said {text} and went"),
            lambda text: text,
            lambda text: {"text": f"{text}\n", "label": torch.tensor([0, 1])},
            lambda text: (ALL.encode(text), 3, "a name"),
            # Nothing can be known of what the model will read.
            lambda text: torch.rand(LONG, 4),
            lambda text: (torch.rand(4), 1),
        ],
    )
    def test_any_structure(self, encode: Callable[[str], Any]) -> None:
        check(planting(encode))

    def test_bytes(self) -> None:
        class Bytes:
            vocab_size = 256

            def encode(self, text: str) -> list[int]:
                return list(text.encode())

            def decode(self, tokens: Any) -> str:
                return bytes(tokens).decode(errors="replace")

        check(planting(lambda text: text.encode()), Bytes())

    def test_a_part_of_the_canaries_and_those_that_are_held_out(self) -> None:
        coins = CanarySet.draw(PIN, repetitions=[1] * 20, seed=1, holdout=0.5)
        check(planting(ids, coins), canaries=coins)
        check(planting(ids, coins.inserted), canaries=coins)
        check(planting(ids, coins), canaries=coins[:3])

    def test_a_control_is_never_spelled(self) -> None:
        """Nothing is said of what is not planted."""
        controls = CanarySet.draw(PIN, repetitions=[0, 0], seed=3)
        check(planting(lambda text: ids(text.upper()), controls), canaries=controls)

    def test_data_of_others(self, tmp_path: Path) -> None:
        class Theirs(L.LightningDataModule):
            canaries = CanarySet.draw(PIN, repetitions=[7], seed=8)

        check(Theirs())
        check(None)

    def test_one_of_ours_in_another(self) -> None:
        texts = CanarySet.draw(SecretFormat("the key is ###", name="key"), repetitions=[3], seed=0)
        inner = TextDataModule(TEXT * 30, canaries=texts, window=16)
        inner.setup()
        outer = CanaryDataModule(inner, CANARIES, encode=lambda text: (inner.tokenizer.encode(text), 0))
        check(outer, inner.tokenizer, CanarySet([*texts, *CANARIES]))


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("encode", "message"),
        [
            (
                lambda text: ids(text.upper()),
                "'my-pin-is-2x', which is planted, but not as it is measured; expected its 14 tokens",
            ),
            (lambda text: ids(text.capitalize()), "not even the first of them is there"),
            (lambda text: ids(text)[:12], "only the first 12 of them are there"),
            (lambda text: ids(text.replace(" ", "  ")), "only the first 3 of them are there"),
            (lambda text: ids(text[::-1]), "what encode makes of it"),
            (lambda text: ids(text) + 1, "Use one tokenizer for both"),
            (lambda text: (ids(text)[:13], ids(text)[2:15]), "only the first 13"),
            (str.upper, "leave the text as it is"),
            (lambda text: {"text": text, "input_ids": ids(text.upper())}, "leave the text as it is"),
            (lambda text: ids("my pin is 0000"), "only the first"),
        ],
    )
    def test_an_encode_that_changes_the_text(self, encode: Callable[[str], Any], message: str) -> None:
        with pytest.raises(DataError, match=message):
            check(planting(encode))

    def test_a_prompt_of_one_word(self) -> None:
        """Digits are the same in upper case: the prompt tells."""
        for pattern in ("pin ####", "pin####"):
            canaries = CanarySet.draw(SecretFormat(pattern), repetitions=[1], seed=0)
            check(planting(ids, canaries), canaries=canaries)
            with pytest.raises(DataError, match="not as it is measured"):
                check(planting(lambda text: ids(text.upper()), canaries), canaries=canaries)

    def test_another_tokenizer(self) -> None:
        other = CharTokenizer([*ALL.vocabulary[::-1]])
        with pytest.raises(DataError, match="Use one tokenizer for both"):
            check(planting(ids), other)
        data = TextDataModule(TEXT * 30, canaries=CANARIES, window=16)
        data.setup()
        check(data, data.tokenizer)
        with pytest.raises(DataError, match="the data module's training text"):
            check(data, ALL)

    def test_no_message_tells_the_secret(self) -> None:
        with pytest.raises(DataError) as refused:
            check(planting(lambda text: ids(text.upper())))
        assert not any(text.removeprefix("my pin is ") in str(refused.value) for text in CANARIES.texts)

    def test_other_canaries(self) -> None:
        data = planting(ids)
        for other in (
            CanarySet.draw(PIN, repetitions=[0, 2, 5], seed=1),
            CanarySet.draw(SecretFormat("my key is ####", name="my-pin-is"), repetitions=[0, 2, 5], seed=0),
            CanarySet([*CANARIES, *CanarySet.draw(PIN, repetitions=[2, 2], seed=4)[1:]]),
        ):
            with pytest.raises(DataError, match=r"'my-pin-is-2x(-2)?', not planted by the data module"):
                check(data, canaries=other)

    def test_other_copies(self) -> None:
        """A label that says 2x must not stand on a number for 5 copies, and a control must not be planted."""
        data = planting(ids)
        more = CanarySet(canary.replace(repetitions=canary.repetitions + 1) for canary in CANARIES)
        with pytest.raises(DataError, match=r"'my-pin-is-0x', not planted by the data module; expected 1 copy"):
            check(data, canaries=more)
        with pytest.raises(DataError, match="planted 2 times by the data module; expected 3 copies"):
            check(data, canaries=more[1:])
        held_out = CanarySet(canary.replace(held_out=True) for canary in CANARIES)
        with pytest.raises(DataError, match="planted 2 times by the data module; expected 0 copies"):
            check(data, canaries=held_out)


@pytest.fixture(scope="module")
def bpe() -> RustTokenizer:
    tokenizer = RustTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [f"my pin is {n} and the pin of my friend is {n + 7}" for n in range(1000, 1400, 7)]
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=340, special_tokens=["<s>", "</s>"], show_progress=False)
    )
    return tokenizer


class TestSubwords:
    """Byte-level BPE: a word at the beginning of a text has other tokens than the same word behind a space."""

    def test_in_the_middle_of_a_text(self, bpe: RustTokenizer) -> None:
        assert bpe.encode("my pin is 1234").ids[0] != bpe.encode("and my pin is 1234").ids[1]
        check(planting(lambda text: bpe.encode(text).ids), bpe)
        check(planting(lambda text: bpe.encode(f"and the {text} and").ids), bpe)
        check(planting(lambda text: [0, *bpe.encode(f" {text}").ids, 1, 1, 1]), bpe)
        check(planting(lambda text: f"and the {text}"), bpe)

    def test_a_first_word_of_several_tokens(self, bpe: RustTokenizer) -> None:
        friend = CanarySet.draw(SecretFormat("friend is ####"), repetitions=[1, 1], seed=0)
        assert len(bpe.encode("friend").ids) > len(bpe.encode(" friend").ids)
        check(planting(lambda text: bpe.encode(f"my {text}").ids, friend), bpe, friend)
        with pytest.raises(DataError, match="not as it is measured"):
            check(planting(lambda text: bpe.encode(f"my x{text}"[:2] + text[2:]).ids, friend), bpe, friend)

    def test_special_tokens_and_templates_are_the_users_business(self, bpe: RustTokenizer) -> None:
        led = HuggingFaceTokenizer(bpe, lead=[0])
        assert led.encode("my pin is 1234")[0] == 0
        check(planting(lambda text: bpe.encode(text).ids), led)
        check(planting(lambda text: [0, *bpe.encode(text).ids, 1]), led)

        class WithStart:
            """A tokenizer of the user's own that says nothing of the token it puts first."""

            vocab_size = bpe.get_vocab_size()

            def encode(self, text: str) -> list[int]:
                return [0, *bpe.encode(text).ids]

            def decode(self, tokens: Any) -> str:
                return bpe.decode(list(tokens), skip_special_tokens=True)

        check(planting(lambda text: bpe.encode(text).ids), WithStart())

    def test_case_and_cuts_still_show(self, bpe: RustTokenizer) -> None:
        for change in (str.upper, str.capitalize, lambda text: text[:-1], lambda text: text.replace("pin", "key")):
            with pytest.raises(DataError, match="not as it is measured"):
                check(planting(lambda text, change=change: bpe.encode(f"and {change(text)}").ids), bpe)

    def test_measured_tokens_that_are_spelled_in_another_way(self, bpe: RustTokenizer) -> None:
        """The same text, its digits one by one: the model never saw the tokens that are measured."""

        def encode(text: str) -> list[int]:
            return [token for part in (text[:-4], *text[-4:]) for token in bpe.encode(part).ids]

        assert bpe.decode(encode("my pin is 1234")) == "my pin is 1234"
        with pytest.raises(DataError, match="not as it is measured"):
            check(planting(encode), bpe)


@pytest.mark.parametrize("make", [subword_models.unigram, subword_models.metaspace_bpe, subword_models.wordpiece])
def test_other_subwords(make: Callable[[], RustTokenizer]) -> None:
    tokenizer = make()
    canaries = CanarySet.draw(SecretFormat("the code is ####"), repetitions=[1, 3], seed=0)
    for surrounded in ("{}", "and then {} .", " {}"):
        encode = surrounded.format
        check(planting(lambda text, encode=encode: tokenizer.encode(encode(text)).ids, canaries), tokenizer, canaries)
    for change in (lambda text: text[:-1], lambda text: text.replace("code", "word")):
        with pytest.raises(DataError, match="not as it is measured"):
            check(
                planting(lambda text, change=change: tokenizer.encode(change(text)).ids, canaries), tokenizer, canaries
            )


def test_words() -> None:
    words = WordTokenizer.from_text("the code is 1 2 3 4 5 6 7 8 9 0 The CODE so quick brown fox")
    canaries = CanarySet.draw(SecretFormat("the code is # # #"), repetitions=[1, 3], seed=0)
    check(planting(lambda text: words.encode(f"so {text} so"), canaries), words, canaries)
    with pytest.raises(DataError, match="not even the first"):
        check(planting(lambda text: words.encode(text.replace("the", "The")), canaries), words, canaries)


@pytest.mark.parametrize("make", [ExposureCallback, lambda *given: ExtractionCallback(*given, verbose=False)])
def test_training_runs_are_refused_before_they_begin(tmp_path: Path, make: Callable[..., Any]) -> None:
    def encode(text: str) -> tuple[torch.Tensor]:
        return (ids(text),)

    model = LanguageModel("gru", vocab_size=ALL.vocab_size, hidden_size=8, embedding_size=8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for data, canaries in (
        (planting(lambda text: (ids(text.upper()),)), CANARIES),
        (planting(encode), CanarySet.draw(PIN, repetitions=[0, 2, 5], seed=1)),
    ):
        with pytest.raises(DataError, match="canaries has 'my-pin-is-2x', "):
            trainer(tmp_path, make(canaries, ALL), max_epochs=1).fit(model, data)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_audit_too(tmp_path: Path) -> None:
    coins = CanarySet.draw(PIN, repetitions=[1] * 40, seed=0, holdout=0.5)
    with pytest.raises(DataError, match="is planted, but not as it is measured"):
        trainer(tmp_path, AuditCallback(coins, ALL), max_epochs=1).fit(
            Model(8), planting(lambda text: (ids(text.upper()),), coins)
        )


def test_looking_changes_nothing_even_if_encode_draws_random_numbers(tmp_path: Path) -> None:
    """Random padding: the same with the callback and without it."""
    canaries = CanarySet.draw(PIN, repetitions=[3, 9], seed=0)

    def encode(text: str) -> torch.Tensor:
        return torch.cat([torch.tensor(CHARS.encode(text)), torch.randint(CHARS.vocab_size, (6,))])

    weights = []
    for callbacks in ([], [ExposureCallback(canaries, CHARS, references=0)]):
        L.seed_everything(5, verbose=False)
        items = [torch.tensor(CHARS.encode((TEXT * 2)[i : i + 20])) for i in range(40)]
        plain = DataLoader(items, batch_size=8, shuffle=True, collate_fn=lambda rows: [torch.stack(rows)])
        model = Model(8)
        trainer(tmp_path, *callbacks, max_epochs=1).fit(model, CanaryDataModule(plain, canaries, encode=encode))
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
