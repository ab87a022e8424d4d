"""Formats of regular expressions, and of several lines, wherever a format works: trees, attacks, data, reports."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_exposure import (
    CanaryDataModule,
    CanarySet,
    CharTokenizer,
    SecretFormat,
    SecretTree,
    extract,
    leak_probability,
    measure_exposure,
)
from lightning_exposure.data.text import TextDataModule
from lightning_exposure.exposure import measure_tied_exposure
from lightning_exposure.report import write_report
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.tables import extraction_table
from lightning_exposure.secrets import Redaction, TiedFormats
from tests import oracle
from tests.tokenization.subword_models import KINDS, oracle_costs
from tests.toys import Recurrent, sharpened

CODE = SecretFormat.regex(r"my code is [0-4]{1,2}(-[ab])?")
ADDRESS = SecretFormat(
    "Mr {first} {last}\n{street} Street,\n{city} City CA #\nU.S.A",
    first=["Harry", "Ron"],
    last=["Potter"],
    street=["Ginger", "Oak"],
    city=["Maple", "Elm"],
)
"""An address over four lines, as in the paper on leakage in LSTMs."""

ADDRESS_REGEX = SecretFormat.regex("Mr (Harry|Ron) Potter\n(Ginger|Oak) Street,\n(Maple|Elm) City CA [0-9]\nU\\.S\\.A")


@cache
def tree_of(format: SecretFormat, kind: str = "characters") -> SecretTree:
    tokenizer: Any = CharTokenizer.from_text(*format.covering()) if kind == "characters" else KINDS[kind]()
    size = tokenizer.vocab_size if kind == "characters" else tokenizer.get_vocab_size()
    return SecretTree(sharpened(Recurrent(size), seed=4), format, tokenizer)


@pytest.mark.parametrize("format", [CODE, ADDRESS, ADDRESS_REGEX], ids=["code", "address", "regex"])
def test_exposure_and_extraction_are_those_of_the_oracle(format: SecretFormat) -> None:
    tree = tree_of(format)
    costs = oracle.costs(tree.model.module, format, tree.tokenizer)
    secrets = [format.render(i) for i in (0, format.size // 2, format.size - 1)]
    for secret, estimate in zip(secrets, measure_exposure(tree, secrets, "exact"), strict=True):
        assert estimate.rank == oracle.rank(secret, costs)
    best = extract(tree).candidates[0].text
    assert best == min(costs, key=costs.__getitem__)


@pytest.mark.parametrize("kind", ["byte-level BPE", "Unigram", "WordPiece"])
def test_subwords_spell_texts_of_different_lengths(kind: str) -> None:
    format = SecretFormat.regex(r"my code is [0-9]{1,2}")
    tree = tree_of(format, kind)
    assert tree.size == 110
    costs = oracle_costs(tree.model.module, format, KINDS[kind](), len(tree.spelling.root))
    (estimate,) = measure_exposure(tree, ["my code is 42"], "exact")
    assert estimate.rank == oracle.rank("my code is 42", costs)


@pytest.mark.parametrize("format", [ADDRESS, ADDRESS_REGEX], ids=["pattern", "regex"])
def test_who_knows_the_first_lines_extracts_the_others(format: SecretFormat) -> None:
    """As in the paper: "Mr Harry" -> name, street, city, state, zip."""
    tree = tree_of(format)
    known = "Mr Harry Potter\nOak Street,\n"
    found = extract(tree.starting_with(known))
    costs = {
        text: cost
        for text, cost in oracle.costs(tree.model.module, format, tree.tokenizer).items()
        if text.startswith(known)
    }
    assert found.optimal
    assert found.candidates[0].text == min(costs, key=costs.__getitem__)
    assert found.candidates[0].text.count("\n") == 3


def test_byte_level_tokens_spell_several_lines() -> None:
    format = SecretFormat("to:\n{who}\n{street} Street\n#####", who=["Ana", "José"], street=["Oak", "Elm"])
    tree = tree_of(format, "byte-level BPE")
    secret = format.render(4_242)
    (estimate,) = measure_exposure(tree, [secret])
    assert 0 <= estimate.low <= estimate.high <= tree.bits
    assert extract(tree.starting_with(secret[:-2])).candidates[0].text.startswith(secret[:-2])
    (leak,) = leak_probability(tree, [secret], budget=200)
    assert 0 <= leak.low <= leak.high < 1


def test_edits_stay_within_what_an_expression_allows() -> None:
    (leak,) = leak_probability(tree_of(CODE), ["my code is 4-a"], edits=1, tolerance=1e-12)
    digits = {f"my code is {digit}-a" for digit in "0123"}
    # A digit may stand where the dash is, as the code may have two of them.
    assert {miss.text for miss in leak.near_misses} == digits | {"my code is 4-b"} | {
        f"my code is 4{digit}a" for digit in "01234"
    }


@pytest.mark.parametrize("format", [CODE, ADDRESS, ADDRESS_REGEX], ids=["code", "address", "regex"])
def test_canaries_are_planted_as_often_as_they_should_be(format: SecretFormat, tmp_path: Path) -> None:
    canaries = CanarySet.draw(format, repetitions=[3, 1], seed=1)
    canaries.save(tmp_path / "canaries.json")
    data = TextDataModule(
        "a text of some words in\nseveral lines. " * 200, window=32, canaries=tmp_path / "canaries.json", seed=0
    )
    data.setup()
    (row,) = {id(rows[0]): rows[0] for rows in data.planted_examples().values()}.values()
    text = data.tokenizer.decode(row.tolist())
    assert [text.count(canary.text) for canary in canaries] == [3, 1]
    tree = SecretTree(sharpened(Recurrent(data.tokenizer.vocab_size), seed=1), format, data.tokenizer)
    assert len(measure_exposure(tree, canaries.texts)) == 2

    loader = torch.utils.data.DataLoader(torch.zeros(20, 64, dtype=torch.long), batch_size=4)
    wrapped = CanaryDataModule(loader, canaries, encode=lambda text: torch.tensor(list(text.encode().ljust(64))))
    rows = [bytes(row.tolist()).decode() for batch in wrapped.train_dataloader() for row in batch]
    assert [sum(row.startswith(canary.text) for row in rows) for canary in canaries] == [3, 1]


def test_tied_expressions_are_measured_in_translations() -> None:
    from lightning_exposure.modules import EncoderDecoder

    tied = TiedFormats(SecretFormat.regex("my pin is [0-9]{2}"), SecretFormat.regex("meine pin ist [0-9]{2}"))
    tokenizer = CharTokenizer.from_text("my pin is meine ist 0123456789")
    torch.manual_seed(0)
    model = EncoderDecoder(vocab_size=tokenizer.vocab_size, hidden_size=8, embedding_size=8).double()
    plain = TiedFormats(SecretFormat("my pin is ##"), SecretFormat("meine pin ist ##"))
    secret = "meine pin ist 42"
    (ours,) = measure_tied_exposure(
        model, tied, [secret], encode_source=tokenizer.encode, encode_target=tokenizer.encode
    )
    (theirs,) = measure_tied_exposure(
        model, plain, [secret], encode_source=tokenizer.encode, encode_target=tokenizer.encode
    )
    assert (ours.rank, ours.bits) == (theirs.rank, theirs.bits)


@pytest.mark.parametrize("format", [CODE, ADDRESS, ADDRESS_REGEX], ids=["code", "address", "regex"])
def test_reports_show_them_line_by_line(format: SecretFormat, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    canaries = CanarySet.draw(format, repetitions=[3], seed=1)
    tree = tree_of(format)
    attack = extract(tree.starting_with(canaries.texts[0][:-3]))
    record = RunRecord(canaries, extractions={format.name: attack})
    record.save(tmp_path)
    again = RunRecord.load(tmp_path)
    assert again.canaries == canaries
    page = write_report(again, tmp_path).read_text(encoding="utf-8")
    assert f'<td class="text">{canaries.texts[0]}</td>' in page
    assert ".wide td.text { white-space: pre; }" in page  # lines stay lines
    table = extraction_table({format.name: attack}, canaries, Redaction(canaries, reveal=True))
    assert len(table.split("\n")) == 2 + len(attack.candidates)  # one line a candidate
    assert attack.candidates[0].text.replace("\n", "\\n") in table


def test_words_spell_several_lines() -> None:
    format = SecretFormat(
        "send to: {first} {last}\n{street} Street\n\nU.S.A",
        first=["Harry", "Ron"],
        last=["Potter", "Weasley"],
        street=["Oak", "Elm", "Old Mill"],
    )
    canaries = CanarySet.draw(format, repetitions=[2], seed=0)
    data = TextDataModule("some words in\na text . " * 100, level="word", window=16, canaries=canaries, val_fraction=0)
    data.setup()
    tree = SecretTree(sharpened(Recurrent(data.tokenizer.vocab_size), seed=1), format, data.tokenizer)
    costs = oracle.costs(tree.model.module, format, data.tokenizer)
    (estimate,) = measure_exposure(tree, canaries.texts, "exact")
    assert estimate.rank == oracle.rank(canaries.texts[0], costs)
    known = "send to: Harry Potter\n"
    found = extract(tree.starting_with(known))
    assert found.candidates[0].text == min((t for t in costs if t.startswith(known)), key=costs.__getitem__)
