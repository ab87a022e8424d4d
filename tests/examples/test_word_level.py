"""The word-level example runs, and its table says what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.test_examples import run


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    path = tmp_path / "cwd"
    path.mkdir()
    return path


def test_word_level(cwd: Path) -> None:
    out = run("word_level.py", cwd, "--seed", "0").splitlines()
    words, rest = out[0].split(" words, ")
    assert 300 <= int(words) < 330, "the most frequent ones, those of the canaries, and one for all others"
    assert rest.startswith("1 epochs in ")
    for name in ("digits", "words"):
        assert any(line.startswith(f"{name}: 1,000,000 secrets, measured in ") for line in out)
    title, header, *rows = out[out.index("") + 1 :]
    assert title.startswith("Mean exposure in bits (of 19.9)")
    assert header.split() == ["inserted", "canaries", "digits", "exact", "words", "exact"]
    table = [[float(cell) for cell in row.split()] for row in rows]
    assert [row[:2] for row in table] == [[0, 1], [1, 1], [4, 1], [16, 1]]
    assert all(0 <= bits <= 19.94 for row in table for bits in (row[2], row[4]))
    assert table[-1][2] > table[0][2], "what was inserted 16 times is more exposed than what never was"
    assert table[-1][4] > table[0][4]
    assert not any(cwd.iterdir())
