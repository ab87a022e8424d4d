"""Canaries in raw text, and the corpus in windows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_exposure.data import TextDataModule, inject
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.modules import LanguageModel
from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.tree import SecretTree
from tests.data.helpers import CANARIES, LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS

TEXT = "It was a bright cold day in April,\n\nand the clocks were striking  thirteen.\n" * 40


def count(text: str, canaries: CanarySet) -> dict[str, int]:
    return {canary.id: text.count(canary.text) for canary in canaries}


WANTED = {canary.id: canary.repetitions for canary in CANARIES}

# ---- inject ----------------------------------------------------------------------------------------------------


@given(text=st.text(alphabet="ab é\n\t ", max_size=60), seed=st.integers(0, 10**6))
def test_inject_keeps_every_word_and_every_canary_whole(text: str, seed: int) -> None:
    made = inject(text, CANARIES, seed)
    assert count(made, CANARIES) == WANTED
    words = made.split()
    for canary in CANARIES:
        one, two = canary.text.split()
        while two in words:
            place = words.index(two)
            assert words[place - 1] == one
            del words[place - 1 : place + 1]
    assert words == text.split()
    if len(text) > 1:
        rest = made
        for canary in CANARIES:
            rest = rest.replace(f" {canary.text}", "").replace(f"{canary.text} ", "").replace(canary.text, "")
        assert rest == text


def test_inject_depends_on_the_seed_and_on_nothing_else() -> None:
    state = random.getstate()
    made = inject(TEXT, CANARIES, 3)
    assert made == inject(TEXT, CANARIES, 3) == inject(TEXT, CANARIES, random.Random(3))
    assert made != inject(TEXT, CANARIES, 4)
    assert count(inject(TEXT, CANARIES, np.random.default_rng(0)), CANARIES) == WANTED
    assert random.getstate() == state
    assert inject(TEXT, CanarySet([]), 0) == TEXT


def test_inject_copies_the_text_once_however_many_canaries_there_are() -> None:
    class Counting(str):
        copied = 0

        def __getitem__(self, place: Any) -> str:
            part = super().__getitem__(place)
            Counting.copied += len(part)
            return part

    canaries = CanarySet.draw(SecretFormat("pin ####"), repetitions=[200], seed=0)
    text = Counting("word " * 4_000)
    assert count(inject(text, canaries, 0), canaries) == {"pin-200x": 200}
    assert Counting.copied == len(text)


def test_inject_refuses_what_is_no_text() -> None:
    with pytest.raises(ArgumentError, match="text is b'x', of type bytes; expected a string"):
        inject(b"x", CANARIES)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="canaries is of type str; expected a CanarySet"):
        inject("x", "pin 1234")  # type: ignore[arg-type]


# ---- TextDataModule --------------------------------------------------------------------------------------------


def windows(data: TextDataModule) -> list[str]:
    """The texts of all training windows, in order, each with its last target."""
    dataset: Any = data.train_dataloader().dataset
    return [data.tokenizer.decode([*inputs.tolist(), int(targets[-1])]) for inputs, targets in dataset]


def joined(data: TextDataModule) -> str:
    dataset: Any = data.train_dataloader().dataset
    return data.tokenizer.decode(torch.cat([inputs for inputs, _ in dataset]).tolist())


def made(*args: Any, **settings: Any) -> TextDataModule:
    data = TextDataModule(*args, **settings)
    data.setup("fit")
    return data


def test_the_default_corpus_is_english_and_needs_nothing() -> None:
    text = python_topics()
    assert len(text) > 300_000
    assert text.count(" the ") > 2000
    data = made()
    (inputs, targets) = next(iter(data.train_dataloader()))
    assert inputs.shape == targets.shape == (128, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert data.canaries is None


@pytest.mark.parametrize("window", [5, 16, 100])
def test_training_windows_are_the_text_with_canaries_and_nothing_else(window: int) -> None:
    data = made(TEXT, canaries=CANARIES, window=window, val_fraction=0.2)
    text = joined(data)
    assert count(text, CANARIES) == WANTED
    val: Any = data.val_dataloader()
    held_out = data.tokenizer.decode(torch.cat([inputs for inputs, _ in val.dataset]).tolist())
    assert not any(count(held_out, CANARIES).values())
    assert 0.15 < len(held_out) / len(TEXT) < 0.21
    for canary in CANARIES:
        text = text.replace(f" {canary.text}", "").replace(f"{canary.text} ", "")
    assert TEXT.startswith(text)
    assert held_out in TEXT[len(text) :]


@pytest.mark.parametrize("window", [8, 13, 40])
@pytest.mark.parametrize("seed", range(5))
def test_a_canary_can_be_kept_whole(window: int, seed: int) -> None:
    whole = made(TEXT, canaries=CANARIES, window=window, seed=seed, whole_canaries=True)
    cut = made(TEXT, canaries=CANARIES, window=window, seed=seed)
    found = {canary.id: sum(text.count(canary.text) for text in windows(whole)) for canary in CANARIES}
    assert found == WANTED
    assert count(joined(cut), CANARIES) == WANTED
    if window == 8:
        assert sum(text.count("pin ") for text in windows(cut)) > 0
        assert any(canary.text not in "\0".join(windows(cut)) for canary in CANARIES)


def test_a_word_level_corpus() -> None:
    format_ = SecretFormat("the code is {a} {b}", a=["red", "green", "blue"], b=["one", "two"])
    canaries = CanarySet.draw(format_, repetitions=[2, 5], seed=0)
    for whole in (False, True):
        data = made(TEXT, level="word", canaries=canaries, window=7, whole_canaries=whole)
        assert count(joined(data), canaries) == {canary.id: canary.repetitions for canary in canaries}
        assert {"red", "green", "blue", "one", "two"} <= set(data.tokenizer.vocabulary)
        inside = {canary.id: sum(text.count(canary.text) for text in windows(data)) for canary in canaries}
        assert (inside == {canary.id: canary.repetitions for canary in canaries}) or not whole
    small = made(TEXT, level="word", canaries=canaries, window=7, words=3)
    assert "<unk>" in small.tokenizer.vocabulary
    assert "blue" in small.tokenizer.vocabulary
    assert "striking" not in small.tokenizer.vocabulary


@pytest.mark.parametrize("level", ["char", "word"])
def test_every_secret_of_the_format_can_be_measured(level: str) -> None:
    canaries = CanarySet.draw(SecretFormat("PIN # # #"), repetitions=[0], seed=0)
    data = made("no capitals and no numbers\n" * 30, level=level, canaries=canaries, window=8)
    model = LanguageModel(vocab_size=data.tokenizer.vocab_size, hidden_size=4, embedding_size=4)
    tree = SecretTree(model, canaries[0].format, data.tokenizer)
    assert tree is not None
    for text in ("PIN 0 1 2", "PIN 3 4 5", "PIN 6 7 8", "PIN 9 9 9"):
        assert data.tokenizer.decode(data.tokenizer.encode(text)) == text


def test_canaries_from_a_manifest_and_the_same_run_twice(tmp_path: Path) -> None:
    CANARIES.save(tmp_path / "canaries.json")
    data = made(TEXT, canaries=tmp_path / "canaries.json", window=9)
    assert data.canaries == CANARIES
    other = made(TEXT, canaries=str(tmp_path / "canaries.json"), window=9)
    for one, two in zip(data.train_dataloader(), other.train_dataloader(), strict=True):
        assert torch.equal(one[0], two[0])
    assert joined(made(TEXT, canaries=CANARIES, window=9, seed=1)) != joined(data)


def test_settings_reach_the_loaders_and_secrets_stay_out_of_hyperparameters() -> None:
    data = made(TEXT, canaries=CANARIES, window=9, batch_size=7, num_workers=1, shuffle=False, drop_last=True)
    loader = data.train_dataloader()
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (7, 1, True)
    assert isinstance(loader.sampler, torch.utils.data.SequentialSampler)
    assert set(data.hparams) & {"text_or_path", "canaries"} == set()
    assert data.hparams["window"] == 9
    assert made(TEXT, window=9, val_fraction=0).val_dataloader() == []
    dataset: Any = loader.dataset
    with pytest.raises(IndexError, match="expected one of the"):
        dataset[len(dataset)]


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert joined(made(path, window=9)) == joined(made(str(path), window=9)) == joined(made(TEXT, window=9))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read .No such file or directory."),
        (b"", "an empty file"),
        (b" \n ", "an empty file"),
        (b"abc\0def", "a binary file"),
        ("à la carte".encode("latin-1"), "not UTF-8 .byte 0 is 0xe0."),
    ],
)
def test_a_file_that_cannot_be_used_is_named(content: bytes | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"text_or_path is '.*corpus\.txt', .*{problem}.*; expected"):
        made(path)
    with pytest.raises(DataError, match="cannot be read"):
        made(tmp_path)


def test_wrong_arguments_are_named() -> None:
    for settings, message in [
        ({"level": "byte"}, "level is 'byte'; expected one of 'char', 'word'"),
        ({"window": 0}, "window is 0; expected an integer of at least 1"),
        ({"batch_size": 1.5}, "batch_size is 1.5, of type float; expected an integer"),
        ({"val_fraction": 1}, "val_fraction is 1; expected a number of at least 0 and below 1"),
        ({"words": 9}, "words is 9; expected None with level='char'"),
        ({"text_or_path": 3}, "text_or_path is 3, of type int; expected a text or a path"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            made(**settings)
    with pytest.raises(DataError, match=r"setup\(\) was not called yet"):
        TextDataModule().train_dataloader()
    with pytest.raises(DataError, match=r"a training part of 1\d tokens; expected more than window=64"):
        made("too short\nfor that")
    with pytest.raises(DataError, match=r"a validation part of \d+ tokens; expected more than window=300"):
        made(TEXT, window=300, val_fraction=0.05)
    with pytest.raises(DataError, match="window is 6, and canary 'pin-0x' has 8 tokens, which can't be kept whole"):
        made(TEXT, window=6, canaries=CANARIES, whole_canaries=True)
    with pytest.raises(DataError, match="no place is left for canary"):
        made("ab cd\nef gh ij kl", window=8, val_fraction=0, canaries=CANARIES, whole_canaries=True)
