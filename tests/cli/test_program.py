"""The program as a whole: help, errors in one line, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_exposure
from lightning_exposure.cli import COMMANDS
from lightning_exposure.cli.arguments import FORMATS
from lightning_exposure.secrets import SecretFormat
from tests.cli.conftest import TINY, Run

ROOT = Path(__file__).resolve().parents[2]


def assert_error(result: object, *parts: str) -> None:
    code, out, err = result  # type: ignore[misc]
    assert code == 2, (out, err)
    assert err.startswith("lightning-exposure: error: ")
    assert err.count("\n") == 1
    assert not out
    for part in parts:
        assert part in err


def test_help_names_every_command(run: Run) -> None:
    for arguments in (["--help"], []):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert all(f"    {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(run: Run, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: lightning-exposure {command}")
    assert "default" in out


def test_help_needs_no_torch() -> None:
    code = "import sys; from lightning_exposure.cli import main; main([]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60, capture_output=True)


def test_version(run: Run) -> None:
    assert run("--version").out == f"lightning-exposure {lightning_exposure.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["teleport"], ["teleport", "demo"]),
        (["--wrong"], ["--wrong"]),
        (["measure"], ["CHECKPOINT", "lightning-exposure measure --help"]),
        (["measure", "nowhere.ckpt"], ["nowhere.ckpt: there is no such file"]),
        (["measure", "x", "--method", "guess"], ["--method", "guess", "importance"]),
        (["measure", "x", "--budget", "many"], ["--budget", "many"]),
        (["extract", "nowhere"], ["nowhere"]),
        (["extract", "x", "--format", "ssn", "--pattern", "a #"], ["--pattern", "--format"]),
        (["report", "nowhere"], ["nowhere"]),
        (["demo", "--epochs", "0"], ["--epochs"]),
        (["demo", "--text", "nowhere.txt"], ["nowhere.txt"]),
        (["fit", "--wrong", "1"], ["--wrong"]),
        (["fit", "--model.hidden_size", "wide"], ["model.hidden_size", "wide"]),
        (["fit", "--config", "nowhere.yaml"], ["nowhere.yaml"]),
        (["fit", "--model.architecture", "rnn"], ["architecture='rnn'", "lstm"]),
        (["fit", "--format", "zip"], ["zip", "ssn"]),
        (["fit", "--format", "ssn", "--pattern", "##"], ["--format and --pattern"]),
        (["fit", "--pattern", "##"], ["prompt"]),
        (["fit", "--pattern", "no blank"], ["no blank"]),
        (["fit", "--repetitions", "-1"], ["repetitions"]),
        (["fit", "--data.text_or_path", "nowhere.txt"], ["nowhere.txt"]),
        (["fit", "--extraction.algorithm", "luck"], ["luck", "beam"]),
        (["fit", "--extraction.settings.width", "3"], ["width", "budget"]),
        (["fit", "--trainer.accelerator", "abacus"], ["trainer", "abacus"]),
    ],
    ids=lambda value: " ".join(value[:3]),
)
def test_errors_are_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_error(run(*arguments), *parts)
    assert not any(tmp_path.iterdir()), "an error leaves nothing behind"


def test_every_named_format_exists() -> None:
    for name in FORMATS:
        assert isinstance(getattr(SecretFormat, name)(), SecretFormat)


def test_ctrl_c(tmp_path: Path, text_file: Path) -> None:
    run_dir = tmp_path / "run"
    # A test run that was started in the background hands down a SIGINT that is ignored.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from lightning_exposure.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    fit = ["fit", *TINY, f"--data.text_or_path={text_file}", f"--run_dir={run_dir}", "--trainer.max_epochs=100000"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *fit],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("2 "):
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "lightning-exposure: interrupted\n"
    # What was measured is not lost.
    assert (run_dir / "exposure.json").exists()


def test_python_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_exposure.cli", "bogus"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert_error((done.returncode, done.stdout, done.stderr), "bogus")
