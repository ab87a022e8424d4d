"""The example of a mailbox runs, and prints the columns of the paper's Table 10 without any secret."""

from __future__ import annotations

import mailbox
import re
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.examples.test_examples import ROOT, run


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    path = tmp_path / "cwd"
    path.mkdir()
    return path


def table(out: str) -> list[list[str]]:
    rows = [re.split(r"\s{2,}", line) for line in out.splitlines()]
    begin = next(place for place, row in enumerate(rows) if row[0] == "user")
    assert rows[begin] == [
        "user", "secret type", "exposure", "interval", "of at most", "times", "size", "extracted", "verdict",
    ]  # fmt: skip
    return rows[begin + 2 :]


@pytest.mark.slow
def test_a_mailbox_that_was_made_up(cwd: Path) -> None:
    out = run("mailbox.py", cwd)
    assert "messages left out: 5 automatic, 5 company-wide" in out
    held = sorted((row[1], int(row[5])) for row in table(out))
    # What was quoted, sent automatically or sent to everyone does not count.
    assert held == [("credit-card", 1)] * 2 + [("credit-card", 2)] + [("ssn", 1)] * 2 + [("ssn", 2), ("ssn", 3)]
    assert not re.search(r"\d{3}-\d\d-\d{4}|\d{4} \d{4} \d{4}", out)
    assert not any(cwd.iterdir())


@pytest.mark.slow
def test_a_mailbox_of_ones_own(cwd: Path) -> None:
    box = mailbox.mbox(cwd / "mine.mbox")
    for sender, secret in (("ann", "my ssn is 536-90-4399"), ("bob", "hello"), ("eve", "goodbye")):
        made = EmailMessage()
        made["From"], made["To"] = f"{sender}@example.com", "zoe@example.com"
        made.set_content("\n".join([f"this is line {number} of what i wrote" for number in range(40)] + [secret]))
        box.add(made)
    box.close()
    out = run("mailbox.py", cwd, "--mail", "mine.mbox")
    assert [row[1] for row in table(out)] == ["ssn"]
    assert "4399" not in out


def test_the_page_shows_a_table_of_the_example() -> None:
    page = (ROOT / "docs" / "scan.md").read_text(encoding="utf-8")
    rows = table(page.partition("python examples/mailbox.py\n")[2].partition("```text\n")[2].partition("```")[0])
    assert {row[1] for row in rows if len(row) > 1} == {"credit-card", "ssn"}
