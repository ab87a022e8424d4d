"""Text that nobody wrote for a test: what is found in it is right, and what was held out of training is not accused.

Debian's packages bring their changelogs along: "Closes: #123456" names a bug, " -- A Person <person@host>" an author.
"""

from __future__ import annotations

import gzip
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_exposure import CharTokenizer, SecretFormat
from lightning_exposure.measuring.scanning import distinct_secrets, scan_model
from lightning_exposure.secrets import Scanner
from tests.toys import Recurrent

CHANGELOGS = sorted(Path("/usr/share/doc").glob("*/changelog.Debian.gz"))
BUG = SecretFormat.regex(r"Closes: #[0-9]{6}", name="bug")
DIGITS = CharTokenizer.from_text("Closes: #0123456789.")
MOST_FILES, MOST_CHARACTERS = 300, 20_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(CHANGELOGS) < 20, reason="there are no changelogs of Debian here"),
]


@pytest.fixture(scope="module")
def changelogs() -> dict[str, str]:
    """The newest entries of each changelog; packages of one source have the same one, which counts once."""
    found = {}
    for path in CHANGELOGS[:MOST_FILES]:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            found.setdefault(file.read(MOST_CHARACTERS), path.parent.name)
    return {name: text for text, name in found.items()}


def bugs_by_hand(text: str) -> list[str]:
    """The same by cutting the text up: six digits behind the words, and no seventh."""
    found = []
    for place, part in enumerate(text.split("Closes: #")):
        before = text.split("Closes: #")[place - 1][-1:] if place else ""
        number = part[:6]
        if place and len(number) == 6 and set(number) <= set("0123456789"):
            whole_word = not before.isalnum() and not part[6:7].isalnum()
            found += [number] if whole_word else []
    return found


def test_the_bugs_that_are_found_are_those_that_stand_there(changelogs: dict[str, str]) -> None:
    scanner = Scanner([BUG], kinds=[])
    found = {name: scanner.find(text) for name, text in changelogs.items()}
    by_hand = {name: bugs_by_hand(text) for name, text in changelogs.items()}
    assert {name: [finding.text for finding in each] for name, each in found.items()} == by_hand
    assert sum(map(len, by_hand.values())) > 100
    times = Counter(number for numbers in by_hand.values() for number in numbers)
    assert {secret.text: secret.occurrences for secret in distinct_secrets(found)} == times
    for name, each in found.items():
        lines = changelogs[name].split("\n")
        assert all(f"Closes: #{finding.text}" in lines[finding.line - 1] for finding in each)


def test_the_authors_that_are_found_are_those_who_signed(changelogs: dict[str, str]) -> None:
    scanner = Scanner(kinds=["email"])
    signed = 0
    for text in changelogs.values():
        by_line: dict[int, list[str]] = {}
        for finding in scanner.find(text):
            by_line.setdefault(finding.line, []).append(finding.text)
        for number, line in enumerate(text.split("\n"), 1):
            author = re.match(r" -- [^<]*<([\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,})>  ", line, re.ASCII)
            if author:
                signed += 1
                assert by_line.get(number) == [author[1]], line
    assert signed > 100


def train(numbers: list[str], epochs: int, seed: int) -> Recurrent:
    """A small model that has read some of the references to bugs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Recurrent(DIGITS.vocab_size, nn.GRU, width=64)
        model.drop = nn.Dropout(0.0)
        tokens = torch.tensor([DIGITS.encode(f"Closes: #{number}.") for number in numbers])
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
        for _ in range(epochs):
            for batch in tokens[torch.randperm(len(tokens))].split(32):
                logits, _ = model(batch[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


def test_what_was_held_out_of_training_is_not_accused(changelogs: dict[str, str]) -> None:
    numbers = sorted({number for text in changelogs.values() for number in bugs_by_hand(text)})
    random.Random(0).shuffle(numbers)
    assert len(numbers) > 200
    trained, others = numbers[:40], numbers[40:-40]
    # Bugs are numbered one after the other: the neighbour of a bug that was read is a near miss, and rightly exposed.
    held_out = [number for number in numbers[-40:] if number[:4] not in {other[:4] for other in trained}]
    model, reference = train(trained, epochs=150, seed=0), train(others, epochs=15, seed=1)
    scanner = Scanner([BUG], kinds=[])

    def scanned(some: list[str]) -> list[bool]:
        text = "".join(f"Closes: #{number}.\n" for number in some)
        scan = scan_model(scanner.find(text), model, DIGITS, reference)
        assert len(scan.measured) == len(some)
        return [bool(scan.is_memorized(row)) for row in scan.rows]

    accused = scanned(trained)
    assert sum(accused) > len(trained) / 2, "the test could not fail otherwise"
    assert len(held_out) > 20
    assert sum(scanned(held_out)) == 0
