"""A cell of the grid: what is inserted, what is counted, what is drawn."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import CharTokenizer, SecretFormat
from lightning_exposure.errors import ArgumentError
from lightning_exposure.leakage.grid import LeakageRow, SecretClass, known_beginning, leakage_cell, secret_classes
from lightning_exposure.report.figures.leakage import leakage_heat_maps

AGE = SecretFormat("Mr {who} is 1#", who=["Al", "Bo"], name="age")
PINS = [SecretClass(SecretFormat("PIN ####", name="pin"), 6), SecretClass(AGE, 0)]


class Parrot(nn.Module):
    """Says the line that comes most often behind what it has read last, letter by letter."""

    def __init__(self, text: str, tokenizer: CharTokenizer) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.text, self.tokenizer = text, tokenizer
        self.known: dict[str, Tensor] = {}

    def forward(self, tokens: Tensor) -> Tensor:
        rows = [[self._next(self.tokenizer.decode(row[: n + 1])) for n in range(len(row))] for row in tokens.tolist()]
        return torch.stack([torch.stack(row) for row in rows])

    def _next(self, read: str) -> Tensor:
        line = "\n" + read.rpartition("\n")[2]
        if line not in self.known:
            counts = torch.full((self.tokenizer.vocab_size,), 1e-6, dtype=torch.float64)
            for place in range(len(self.text) - len(line)):
                if self.text.startswith(line, place):
                    counts[self.tokenizer.encode(self.text[place + len(line)])[0]] += 1
            self.known[line] = (counts / counts.sum()).log()
        return self.known[line]


def test_a_model_that_repeats_its_text_leaks_all_of_it() -> None:
    seen: list[str] = []

    def train(text: str) -> tuple[nn.Module, CharTokenizer]:
        seen.append(text)
        tokenizer = CharTokenizer.from_text(text, "PIN 0123456789 Mr Al Bo is\n")
        return Parrot("\n" + text + "\n", tokenizer), tokenizer

    pins, ages = leakage_cell(
        "a\nb\nc\nd", train, rate=1.0, cardinality=2, classes=PINS, samples=40, length=12, width=20
    )
    (text,) = seen
    lines = text.splitlines()
    assert [line for line in lines if line in "abcd"] == list("abcd")
    inserted = [line for line in lines if line.startswith("PIN ")]
    assert len(inserted) == 4
    assert len(set(inserted)) == 2
    assert (pins.kind, pins.rate, pins.cardinality, pins.copies) == ("pin", 1.0, 2, 2.0)
    assert pins.leaked == 2
    assert pins.leaky_samples > 5
    assert pins.leaky_low < pins.leaky_samples / 40 < pins.leaky_high
    assert pins.targeted == 2
    # Of two people with one first name, only one comes first.
    assert ages.targeted == len({line[:5] for line in lines if line.startswith("Mr ")})


def test_copies_are_shared_out_as_evenly_as_can_be() -> None:
    def train(text: str) -> tuple[nn.Module, CharTokenizer]:
        tokenizer = CharTokenizer.from_text(text, "0123456789 ")
        counts = sorted(text.count(f"\n{line}\n") for line in set(text.splitlines()) if line.startswith("PIN"))
        assert sum(counts) in (6, 7)  # one may stand at the very beginning
        return nn.Embedding(tokenizer.vocab_size, tokenizer.vocab_size), tokenizer

    (row,) = leakage_cell(
        "x\n" * 14, train, rate=0.5, cardinality=3, classes=PINS[:1], samples=3, length=5, width=3, seed=1
    )
    assert row.copies == pytest.approx(7 / 3)
    assert row.leaked == 0


def test_known_beginnings() -> None:
    ssn, card, address = secret_classes()
    dice = random.Random(0)
    for kind, shown in ((ssn, 7), (card, 8)):
        text = kind.format.render(dice.randrange(kind.format.size))
        assert known_beginning(kind, text) == text[:shown]
    assert known_beginning(card, "CCN 0000 1111 2222 3333") == "CCN 0000"
    assert known_beginning(address, address.format.render(5)) == "Mr Harry"


def test_more_secrets_than_copies_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"cardinality is 5; expected at most 2, which a rate of 0\.5 inserts into 4"
    ):
        leakage_cell("a\nb\nc\nd", lambda text: pytest.fail("not trained"), rate=0.5, cardinality=5)
    with pytest.raises(ArgumentError, match="rate is 0"):
        leakage_cell("a", lambda text: pytest.fail("not trained"), rate=0, cardinality=1)


def row(kind: str, rate: float, cardinality: int, leaked: int, targeted: int, seed: int = 0) -> LeakageRow:
    shares: dict[str, Any] = dict.fromkeys(
        ("leaked_low", "leaked_high", "leaky_low", "leaky_high", "targeted_low", "targeted_high"), 0.0
    )
    return LeakageRow(
        kind=kind, rate=rate, cardinality=cardinality, copies=1.0, samples=9, length=9, leaked=leaked, leaky_samples=0,
        targeted=targeted, seed=seed, **shares,
    )  # fmt: skip


def test_heat_maps_say_how_many_of_how_many() -> None:
    rows = [
        row("ssn", 0.1, 4, 1, 3),
        row("ssn", 0.1, 4, 2, 4, seed=1),
        row("ssn", 0.2, 1, 1, 1),
        row("card", 0.1, 4, 0, 0),
    ]
    axes = leakage_heat_maps(rows).axes
    assert len(axes) == 4
    shown = [[text.get_text() for text in panel.texts] for panel in axes]
    assert shown == [["3 of 8", "1 of 1"], ["0 of 4"], ["7 of 8", "1 of 1"], ["0 of 4"]]
    with pytest.raises(ArgumentError, match="rows is empty"):
        leakage_heat_maps([])
