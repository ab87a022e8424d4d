"""The translation example runs, and its table says what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.test_examples import run


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    path = tmp_path / "cwd"
    path.mkdir()
    return path


def test_translation(cwd: Path) -> None:
    out = run("translation.py", cwd, "--seeds", "0").splitlines()
    assert out[0].startswith("seed 0: 400 pairs and 7 copies of canaries, 4 epochs in ")
    title, header, *rows = out[out.index("") + 1 :]
    assert title == "Mean exposure in bits (of 29.9; for the last 3 digits, of 10.0)"
    assert header.split()[:3] == ["inserted", "canaries", "at"]
    table = [[float(cell) for cell in row.split()] for row in rows]
    assert [row[:2] for row in table] == [[0, 1], [1, 1], [2, 1], [4, 1]]
    for _, _, _, sampling, skew_normal, last, last_skew_normal, without, own in table:
        assert all(0 <= bits <= 29.9 for bits in (sampling, skew_normal, without, own))
        assert 0 <= last <= 9.97
        assert 0 <= last_skew_normal <= 9.97
    never, *_, often = table
    assert often[3] > never[3] + 2, "what was inserted four times is more exposed than what never was"
    assert often[5] > never[5]
    assert not any(cwd.iterdir())
