"""Secrets in a hundred thousand lines: how long it takes to find them."""

from __future__ import annotations

import random

from benchmarks.corpus import python_manual
from benchmarks.table import Row, Target
from benchmarks.timing import best_of
from lightning_exposure import SecretFormat
from lightning_exposure.secrets import Scanner


def benchmark_scanning(*, lines: int = 100_000, planted: int = 1_000, repeats: int = 1) -> list[Row]:
    """Scan lines of a manual with secrets in some of them, on one core.

    Args:
        lines: How many lines.
        planted: In how many of them a secret stands.
        repeats: The fastest of so many runs counts.
    """
    text, count = lines_with_secrets(lines, planted)
    own = SecretFormat("the door code is ####")
    findings, seconds = best_of(repeats, lambda: Scanner([own]).find(text))
    found = len(findings)
    what = f"{lines:,} lines ({len(text) / 2**20:.1f} MiB) with {count:,} secrets in them"
    return [
        Row(
            f"{what}: time to scan", seconds, "s", Target("below", 60.0), "all nine kinds and one format of the user's"
        ),
        Row(f"{what}: difference to what was planted", float(abs(found - count)), "findings", Target("below", 1.0)),
    ]


def lines_with_secrets(lines: int, planted: int, seed: int = 0) -> tuple[str, int]:
    """Lines of a manual, some of which are replaced by lines with a secret; and how many those are."""
    generator = random.Random(seed)
    manual = python_manual(10_000_000).split("\n")
    rows = [manual[i % len(manual)] for i in range(lines)]
    formats = [
        SecretFormat("the door code is ####"),
        SecretFormat("mail me at {who}###@example.com", who=["ann", "bob"]),
        SecretFormat("she was born on 0{month}/1{day}/19##", month=list("123456789"), day=list("0123456789")),
        SecretFormat("my ssn is 2##-4#-1###"),
        SecretFormat("call 650-253-####, please"),
        SecretFormat("the password is hunter####"),
    ]
    places = generator.sample(range(lines), planted)
    for number, place in enumerate(places):
        format = formats[number % len(formats)]
        rows[place] = format.render(generator.randrange(format.size))
    return "\n".join(rows), len(places)
