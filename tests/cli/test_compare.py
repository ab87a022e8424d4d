"""`compare`: in small, with real differentially private training runs."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from lightning_exposure.report.comparison import Comparison
from tests.cli.conftest import Run

SMALL = {"hidden_size": 16, "embedding_size": 8, "num_layers": 1}


def test_in_small(run: Run, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightning_exposure.cli.commands.compare.MODEL", SMALL)
    monkeypatch.setattr("lightning_exposure.cli.commands.compare.ATTACK_BUDGET", 2000)
    code, out, err = run(
        "compare",
        "--noise_multiplier",
        "0",
        "1",
        "--max_epochs=1",
        f"--text={text_file}",
        "--accountant=rdp",
        "--run_dir=run",
    )
    assert (code, err) == (0, "")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"comparison.json", "comparison.csv", "comparison.png", "report.html"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "no litter"
    comparison = Comparison.load(tmp_path / "run")
    assert [(o.optimizer, o.noise_multiplier) for o in comparison.outcomes] == [
        (optimizer, noise) for optimizer in ("rmsprop", "sgd") for noise in (None, 0.0, 1.0)
    ]
    for outcome in comparison.outcomes:
        assert math.isfinite(outcome.epsilon) == (outcome.noise_multiplier == 1.0)
        assert 0 < outcome.test_loss < 10
        assert 0 <= outcome.exposure.bits <= math.log2(10**9)
    noisy, plain = (next(o for o in comparison.outcomes if o.noise_multiplier == noise) for noise in (1.0, None))
    assert noisy.test_loss != plain.test_loss
    lines = out.splitlines()
    assert sum(line.startswith(("rmsprop ", "sgd ")) for line in lines) == 6
    assert lines[-1] == f"Verdict: {comparison.verdict}."
    with (tmp_path / "run" / "comparison.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6
    code, out, _ = run("report", "run", "--path=again.html")
    assert code == 0
    assert (tmp_path / "again.html").read_text() == (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--noise_multiplier", "-1"], "noise_multiplier"),
        (["--noise_multiplier", "loud"], "loud"),
        (["--max_grad_norm", "0"], "max_grad_norm"),
        (["--delta", "2"], "delta"),
        (["--optimizer", "luck"], "luck"),
        (["--max_epochs", "0"], "--max_epochs is 0; expected"),
        (["--repetitions", "0"], "--repetitions"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_errors_come_before_any_training(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("compare", *arguments)
    assert code == 2
    assert part in err
    assert err.count("\n") == 1
    assert not any(tmp_path.iterdir())
