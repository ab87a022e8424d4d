"""The example of birthdays runs, and its table says what it should."""

from __future__ import annotations

from pathlib import Path

from tests.examples.test_examples import run


def test_birthdays(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    out = run("birthdays.py", cwd, "--figure", "figure.png").splitlines()
    assert out[0].startswith("trained on 330 lines: ")
    assert out[1].startswith("trained on 300 lines: ")
    assert out[2].startswith("7 dates among 100,000,000, measured twice in ")
    header, without, against, chance = out[4:8]
    assert header.split()[4:] == [word for bits in (1, 2, 3, 5, 8) for word in (">=", str(bits), "bits")]
    shares = [[float(cell.rstrip("%")) for cell in row.split()[-5:]] for row in (without, against, chance)]
    assert shares[2] == [50.0, 25.0, 12.5, 3.1, 0.4]
    for row in shares:
        assert row == sorted(row, reverse=True), "what shows more bits shows fewer, too"
    assert sum(shares[0]) >= sum(shares[1]), "a prior explains some of it"
    assert out[9].startswith("the repeated date: ")
    assert [path.name for path in cwd.iterdir()] == ["figure.png"]
