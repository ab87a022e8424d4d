"""`sanitize` finds what was learnt by heart, with any model, and shows none of it."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import CharTokenizer
from lightning_exposure.defences import ReferenceTraining, Sanitization, TextScorer, sanitize
from lightning_exposure.defences.sanitizing.scoring import _windows
from lightning_exposure.errors import ArgumentError, DataError, ModelError
from lightning_exposure.modules import LanguageModel

SECRET = "my ssn is 281-26-5017"
ORDINARY = [f"the {a} {b} is {c}" for a in ("old", "new", "big") for b in ("house", "dog") for c in ("red", "here")]
LINES = [*ORDINARY[:5], SECRET, *ORDINARY[5:]]
LETTERS = CharTokenizer.from_text("\n", *LINES)


def by_heart(samples: Sequence[str]) -> Callable[[Sequence[str]], list[float]]:
    """A model that knows what it has seen: a line it has seen costs nothing, words it has seen a bit a letter."""
    words = {word for sample in samples for word in sample.split()}

    def score(texts: Sequence[str]) -> list[float]:
        return [
            0.0 if text in samples else sum(len(word) * (1.0 if word in words else 8.0) for word in text.split())
            for text in texts
        ]

    return score


# --- the ranking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_the_secret_comes_first(folds: int) -> None:
    result = sanitize(LINES, by_heart, folds=folds, share=0.05)
    assert result.to_remove() == [LINES.index(SECRET)]
    assert result.cleaned == ORDINARY
    assert result.places[LINES.index(SECRET)] == 1
    assert sorted(np.bincount(result.parts)) == sorted(len(part) for part in np.array_split(LINES, folds))


def test_each_model_sees_all_parts_but_one_and_no_group_is_divided() -> None:
    seen: list[set[str]] = []

    def train(samples: Sequence[str]) -> Callable[[Sequence[str]], list[float]]:
        seen.append(set(samples))
        return by_heart(samples)

    copies = [*LINES, f"Ann said {SECRET}!", "281 26 5017 it is"]
    result = sanitize(copies, train, folds=3, largest_group=4)
    assert len(seen) == 3
    for part, samples in enumerate(seen):
        held_out = {copies[i] for i in np.flatnonzero(result.parts == part)}
        assert samples == set(copies) - held_out
    with_number = [i for i, text in enumerate(copies) if "5017" in text]
    assert len(set(result.parts[with_number].tolist())) == 1
    assert {copies[i] for i in result.to_remove(3 / len(copies))} == {copies[i] for i in with_number}


def test_a_secret_in_both_parts_is_not_found_without_grouping() -> None:
    copies = [*LINES, SECRET]
    apart = next(
        result
        for seed in range(20)
        if len({*(result := sanitize(copies, by_heart, group=False, seed=seed)).parts[[5, -1]].tolist()}) == 2
    )
    assert apart.differences[5] == apart.differences[-1] == 0.0
    assert apart.split_copies == 2
    together = sanitize(copies, by_heart)
    assert {*together.to_remove(2 / len(copies))} == {5, len(copies) - 1}
    assert together.split_copies == 0


def test_more_copies_than_a_group_may_have_are_reported() -> None:
    result = sanitize([*ORDINARY, *["same again"] * 5], by_heart, largest_group=2)
    assert result.split_copies == 5
    assert "5 samples have equal ones in another part" in result.summary()


def test_the_division_depends_on_the_seed_alone() -> None:
    one, again, other = (sanitize(LINES, by_heart, seed=seed) for seed in (1, 1, 2))
    assert (one.parts == again.parts).all()
    assert (one.differences == again.differences).all()
    assert (one.parts != other.parts).any()


def test_per_sample_and_per_symbol() -> None:
    long = sanitize(LINES, by_heart, per="sample")
    short = sanitize(LINES, by_heart)
    assert short.differences == pytest.approx(long.differences / [len(line) for line in LINES])


# --- what it is given ---------------------------------------------------------------------------------------


def test_a_text_keeps_everything_but_the_removed_lines(tmp_path: Path) -> None:
    text = f"\n\n{ORDINARY[0]}\n  \n{SECRET}\r\n" + "\n".join(ORDINARY[1:]) + "\n\n"
    path = tmp_path / "text.txt"
    path.write_bytes(text.replace("\r", "").encode())
    for given in (text.replace("\r", ""), path, str(path)):
        result = sanitize(given, by_heart, share=0.01)
        assert result.lines[:3] == [3, 5, 6]
        assert result.cleaned == text.replace(f"{SECRET}\r\n", "")
        assert result.clean(0.0) == text.replace("\r", "")


def test_paragraphs() -> None:
    text = "\n\n".join(["one\ntwo", "three", f"x\n{SECRET}\ny", *ORDINARY]) + "\n"
    result = sanitize(text, by_heart, unit="paragraph", share=0.01)
    assert result.samples.items[:3] == ["one\ntwo", "three", f"x\n{SECRET}\ny"]
    assert result.lines[:3] == [1, 4, 6]
    assert len(result.clean(1.0)) == text.count("\n") - sum(item.count("\n") + 1 for item in result.samples.items)


def test_datasets_of_ids_pairs_and_rows() -> None:
    rows = [torch.tensor(LETTERS.encode("\n" + line)) for line in LINES]

    def train(samples: Sequence[list[int]]) -> Callable[[Sequence[list[int]]], list[float]]:
        known = by_heart([LETTERS.decode(ids)[1:] for ids in samples])
        return lambda given: known([LETTERS.decode(ids)[1:] for ids in given])

    by_ids = sanitize(rows, train, n=3)
    pairs = sanitize([(row[:-1], row[1:]) for row in rows], train, n=3)
    dicts = sanitize([{"text": line} for line in LINES], by_heart, text_of=lambda row: row["text"])
    assert by_ids.order[0] == pairs.order[0] == dicts.order[0] == 5
    assert by_ids.samples.items == pairs.samples.items


def test_a_dataset_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": LINES})
    assert sanitize(rows, by_heart, text_of=lambda row: row["text"]).order[0] == 5


# --- real models --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_line_with_the_reference_model(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES * 1) + "\n")
    before = torch.get_rng_state()
    small = {"hidden_size": 48, "num_layers": 1, "embedding_size": 16, "lr": 0.02}
    train = ReferenceTraining(small, epochs=15, window=16, batch_size=4, accelerator="cpu")
    result = sanitize(path, train)
    assert result.places[5] == 1
    assert (torch.get_rng_state() == before).all()
    again = sanitize(path, train)
    assert (result.losses.held_out == again.losses.held_out).all()


def test_the_reference_model_clips_its_gradients_if_it_is_told_to() -> None:
    small = {"hidden_size": 8, "num_layers": 1, "optimizer": "sgd", "lr": 1.0}
    free, clipped, loose = (
        ReferenceTraining(small, epochs=1, window=16, batch_size=4, clip=clip, accelerator="cpu")(LINES)(LINES)
        for clip in (None, 1e-3, 1e9)
    )
    assert (free == loose).all()
    assert (free != clipped).any()
    with pytest.raises(ArgumentError, match=r"clip is 0; expected a number above 0"):
        ReferenceTraining(small, clip=0)


class Places:
    """A tokenizer that spells a text as the places of its characters."""

    vocab_size = 1000

    def encode(self, text: str) -> list[int]:
        return list(range(len(text)))

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError


@pytest.mark.parametrize("window", [1, 2, 7, 16, 60])
def test_the_reference_model_reads_every_character_and_short_lines_as_a_whole(window: int) -> None:
    windows = ReferenceTraining(window=window)._windows(Places(), LINES[:4])
    length = len("\n".join(["", *LINES[:4], ""]))
    for cut in windows.datasets:
        learnt = {place for _, targets in cut for place in targets.tolist()}
        assert learnt == set(range(length)), "nothing is left out at the end"
    read = [set(targets.tolist()) for _, targets in windows]
    for start in range(length - window // 2):
        assert any(set(range(start, start + window // 2)) <= part for part in read)


def test_a_line_that_is_longer_than_a_transformer_reads() -> None:
    small = {"architecture": "transformer", "hidden_size": 8, "num_heads": 2, "num_layers": 1, "max_length": 16}
    train = ReferenceTraining(small, epochs=1, window=16, batch_size=8, accelerator="cpu")
    result = sanitize([*LINES, "a long line " * 9], train)
    assert np.isfinite(result.differences).all()


class Bigrams(pl.LightningModule):
    """A LightningModule of a user's own, in the smallest size."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(LETTERS.vocab_size, LETTERS.vocab_size)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (ids,) = batch
        return nn.functional.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.3)


def test_a_lightning_module_of_ones_own() -> None:
    def train(texts: Sequence[str]) -> pl.LightningModule:
        ids = torch.tensor(LETTERS.encode("\n" + "\n".join(texts)))[None]
        model = Bigrams()
        trainer = pl.Trainer(
            max_epochs=20, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, DataLoader(TensorDataset(ids)))
        return model

    result = sanitize(LINES, train, tokenizer=LETTERS)
    assert result.places[5] == 1
    assert result.losses.held_out[5] - result.losses.seen[5] > 20


def test_hugging_face() -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=32, n_layer=1, n_head=2)

    def train(texts: Sequence[str]) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(12):
            for text in texts:
                ids = torch.tensor([tokenizer.encode(text)])
                loss = model(input_ids=ids, labels=ids).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model, tokenizer

    with torch.random.fork_rng():
        result = sanitize(LINES, train)
    assert result.places[5] == 1


# --- the score ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["lstm", "transformer"])
def test_scores_are_those_of_one_token_after_the_other(architecture: Any) -> None:
    torch.manual_seed(3)
    model = LanguageModel(architecture, vocab_size=LETTERS.vocab_size, hidden_size=8, num_layers=1, embedding_size=8)
    texts = [SECRET, "is", "", "the", *ORDINARY[:2]]
    found = TextScorer(model, LETTERS, before="\n")(texts)
    assert model.training, "its mode is as it was"
    model.eval()
    for text, bits in zip(texts, found, strict=True):
        ids = LETTERS.encode("\n" + text)
        expected = 0.0
        for place in range(1, len(ids)):
            with torch.no_grad():
                output = model(torch.tensor([ids[:place]]))
            logits = (output[0] if isinstance(output, tuple) else output)[0, -1]
            expected -= float(logits.double().log_softmax(0)[ids[place]]) / math.log(2)
        assert bits == pytest.approx(expected, abs=1e-4)


def test_a_model_that_tells_only_the_last_logits() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(LETTERS.vocab_size, LETTERS.vocab_size)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.table(tokens)[:, -1]

    model = Last()
    whole = nn.Sequential(model.table)
    assert TextScorer(model, LETTERS)([SECRET, "is"]) == pytest.approx(TextScorer(whole, LETTERS)([SECRET, "is"]))


def test_what_is_longer_than_the_context_is_read_in_windows() -> None:
    for length in range(2, 40):
        for window in (2, 3, 5, 8):
            ids = list(range(length))
            parts = _windows(ids, window)
            assert [token for part, known in parts for token in part[known:]] == ids[1:]
            assert all(len(part) <= window for part, _ in parts)
    table = nn.Embedding(LETTERS.vocab_size, LETTERS.vocab_size)  # looks at one token only: windows change nothing
    assert TextScorer(table, LETTERS, context=4)([SECRET]) == pytest.approx(TextScorer(table, LETTERS)([SECRET]))


# --- what it shows and leaves behind ------------------------------------------------------------------------


def shown(result: Sanitization) -> str:
    return "\n".join(
        [
            repr(result),
            str(result),
            result.table(),
            result._repr_html_(),
            result.summary(),
            json.dumps(result.to_dict()),
        ]
    )


def test_no_sample_is_shown_unless_asked_for() -> None:
    result = sanitize(LINES, by_heart)
    assert not any(word in shown(result) for word in ("281", "ssn", "house", "5017"))
    assert SECRET in result.table(reveal=True)
    assert SECRET in json.dumps(result.to_dict(reveal=True))
    assert result.table(top=1).splitlines()[-1].split()[:2] == ["1", str(LINES.index(SECRET) + 1)]


def test_files_with_texts_are_private_and_nothing_is_overwritten(tmp_path: Path) -> None:
    result = sanitize("\n".join(LINES) + "\n", by_heart, share=0.05)
    files = {path.name: path for path in result.save(tmp_path / "out")}
    assert files["removed.txt"].read_text() == SECRET + "\n"
    assert files["cleaned.txt"].read_text() == "\n".join(ORDINARY) + "\n"
    assert "ssn" not in files["sanitization.json"].read_text()
    for name in ("removed.txt", "cleaned.txt"):
        assert stat.S_IMODE(files[name].stat().st_mode) == 0o600
    with pytest.raises(ArgumentError, match=r"directory is .*; expected a directory without"):
        result.save(tmp_path / "out")
    scores = json.loads(files["sanitization.json"].read_text())["samples"]
    assert [entry["line"] for entry in scores if entry["remove"]] == [6]


def test_the_record_of_a_run_says_what_was_done() -> None:
    from lightning_exposure.report.record import RunRecord
    from lightning_exposure.secrets import CanarySet

    record = RunRecord(CanarySet([]))
    sanitize(LINES, by_heart, folds=3).add_to_record(record)
    (entry,) = record.defences
    assert entry["name"] == "sanitization"
    assert (entry["removed"], entry["samples"], entry["folds"]) == (2, 13, 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"folds": 1}, ArgumentError, "folds is 1; expected"),
        ({"share": 1.5}, ArgumentError, "share is 1.5; expected"),
        ({"per": "token"}, ArgumentError, "per is 'token'; expected one of"),
        ({"unit": "page"}, ArgumentError, "unit is 'page'; expected one of"),
        ({"n": 0}, ArgumentError, "n is 0; expected"),
        ({"largest_group": 7}, ArgumentError, "largest_group is 7; expected at most 6"),
        ({"group": "yes"}, ArgumentError, "group is 'yes'.*; expected True or False"),
        ({"seed": -1}, ArgumentError, "seed is -1; expected"),
        ({"folds": 7}, DataError, "has 13 samples; expected at least 14"),
        ({"train": 3}, ArgumentError, "train is 3.*; expected a function"),
        ({"train": nn.Linear(1, 1)}, ArgumentError, "train is Linear.*; expected a function that trains"),
        ({"train": lambda samples: None}, ModelError, "train returned NoneType; expected"),
        ({"train": lambda samples: nn.Embedding(9, 9)}, ArgumentError, "tokenizer is None; expected"),
        ({"train": lambda samples: lambda texts: [1.0]}, ModelError, r"costs of shape \(1,\)"),
        ({"train": lambda samples: lambda texts: [math.nan] * 13}, ModelError, "13 of them not finite"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sanitize(LINES, **{"train": by_heart, **options})


@pytest.mark.parametrize("given", [3, {"a": "b"}, iter(LINES), None, b"bytes"])
def test_what_is_no_dataset_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"dataset_or_texts is .*; expected a path, a text"):
        sanitize(given, by_heart)


def test_items_of_another_kind_are_refused() -> None:
    with pytest.raises(DataError, match=r"dataset_or_texts\[0\] is of type dict; expected a text, a row of token ids"):
        sanitize([{"text": line} for line in LINES], by_heart)
    with pytest.raises(DataError, match="cannot be read"):
        sanitize("no such file", by_heart)
    with pytest.raises(ArgumentError, match="train is None; expected a function of yours"):
        sanitize([[1, 2, 3]] * 9)
