"""`examples/synthetic_text.py`: generators with and without privacy, and what their texts show."""

from __future__ import annotations

import re
from pathlib import Path

from lightning_exposure import CanarySet
from tests.examples.test_examples import run


def test_generated_texts_are_audited(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    lines = run("synthetic_text.py", cwd, "--save_dir=release").splitlines()
    rows = [re.split(r"  +", line) for line in lines if "epochs" in line and " of " in line]
    assert [row[0] for row in rows] == ["1 epochs", "2 epochs", "1 epochs, private"]
    assert [row[1] for row in rows[:2]] == ["none", "none"]
    assert 7 < float(rows[2][1]) <= 8, "what was promised"
    for row in rows:
        assert row[3] == "200"
        assert float(row[4]) >= 0, "what the texts show"
        assert re.fullmatch(r"\d+ of 28", row[6])
    assert sorted(path.name for path in (cwd / "release").iterdir()) == [
        "canaries.json", "held-out.txt", "texts.txt", "train.txt",
    ]  # fmt: skip
    assert len(CanarySet.load(cwd / "release" / "canaries.json")) == 60
