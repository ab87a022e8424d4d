"""The examples run, and say what the README says they say."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    path = tmp_path / "cwd"
    path.mkdir()
    return path


def run(name: str, cwd: Path, *arguments: str, fast: bool = True) -> str:
    """What an example prints, started as a user would, in a directory of its own."""
    home = cwd.parent / "home"
    home.mkdir()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("WANDB_")},
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        # Wherever the tests run, nobody is logged in.
        "HOME": str(home),
        "NETRC": str(home / "netrc"),
        "WANDB_SILENT": "true",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *(["--fast"] if fast else []), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "birthdays.py",
        "dp_comparison.py",
        "existing_script.py",
        "existing_script_with_exposure.py",
        "finetune_gpt2.py",
        "generated_digits.py",
        "leakage_grid.py",
        "mailbox.py",
        "plain_module.py",
        "private_lora.py",
        "rare_prefix.py",
        "sanitization.py",
        "synthetic_text.py",
        "translation.py",
        "with_report.py",
        "with_wandb.py",
        "word_level.py",
    }


def test_an_existing_script_needs_few_new_lines() -> None:
    before, after = (
        (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
        for name in ("existing_script.py", "existing_script_with_exposure.py")
    )
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert 0 < len(changes) < 10, "\n".join(changes)
    assert all(line.startswith("+") for line in changes), "nothing of the script is changed"


def test_existing_script(cwd: Path) -> None:
    assert "train_loss: " in run("existing_script.py", cwd)
    assert not any(cwd.iterdir())


def test_existing_script_with_exposure(cwd: Path) -> None:
    out = run("existing_script_with_exposure.py", cwd)
    for part in ("train_loss: ", "exposure/pin-1x: ", "exposure/pin-16x: ", "exposure/mean: "):
        assert part in out
    assert not any(cwd.iterdir())


def test_plain_module(cwd: Path) -> None:
    out = run("plain_module.py", cwd)
    assert out.count("exposure ") == 2
    assert out.splitlines()[-1] == "No other secret is more likely: proven."
    assert not any(cwd.iterdir())


def test_with_wandb(cwd: Path) -> None:
    pytest.importorskip("wandb")
    run("with_wandb.py", cwd)
    assert list(cwd.glob("wandb/offline-run-*/*.wandb"))


def test_dp_comparison(cwd: Path) -> None:
    lines = run("dp_comparison.py", cwd, "--noise_multiplier", "1", "--save_dir=out").splitlines()
    for optimizer in ("rmsprop", "sgd"):
        rows = [line.split() for line in lines if line.startswith(f"{optimizer} ")]
        assert [row[1:3] for row in rows] == [["none", "infinite"], ["clip", "only"], ["noise", "1"]]
        assert 0 < float(rows[2][3]) < 100, "an epsilon"
    assert any(line.startswith("Without differential privacy the secret ") for line in lines)
    assert {path.name for path in (cwd / "out").iterdir()} == {"comparison.json", "comparison.csv", "comparison.png"}


def test_finetune_gpt2(cwd: Path) -> None:
    pytest.importorskip("transformers")
    out = run("finetune_gpt2.py", cwd)
    assert "a GPT-2 with 48," in out
    assert "epoch 1: loss " in out
    for name in ("ssn-1x ", "ssn-4x ", "ssn-16x "):
        assert name in out
    assert "extracted: " in out
    assert not any(cwd.iterdir())


def test_private_lora(cwd: Path) -> None:
    pytest.importorskip("peft")
    lines = run("private_lora.py", cwd).splitlines()
    plain, private = (next(line for line in lines if line.startswith(f"with {name}")) for name in ("LoRA", "DP-LoRA"))
    assert "no epsilon" in plain
    spent = re.search(r"epsilon ([\d.]+) at delta 1e-05", private)
    assert spent is not None
    assert 7 < float(spent[1]) <= 8
    for line in (plain, private):
        assert re.search(r"exposure in bits: my-pin-is-1x [\d.]+, my-pin-is-16x [\d.]+$", line)
    assert "adapters: 2,304 of 19,328 parameters" in lines
    assert not any(cwd.iterdir())


@pytest.mark.slow
def test_the_rare_prefix_says_what_sharp_edges_says(cwd: Path) -> None:
    printed = run("rare_prefix.py", cwd, fast=False)
    assert printed.strip() in (ROOT / "docs" / "sharp-edges.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_training_run_that_ends_with_a_report(cwd: Path) -> None:
    printed = run("with_report.py", cwd, "--out=page", "--max_epochs=1", "--characters=4000", fast=False)
    assert "Report: page/report.html" in printed
    assert sorted(path.name for path in (cwd / "page").iterdir()) == ["exposure.json", "model-card.md", "report.html"]
