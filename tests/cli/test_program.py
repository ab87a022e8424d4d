"""The program as a whole: help, errors in one line, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_exposure
import lightning_exposure.cli
from lightning_exposure.cli import COMMANDS
from lightning_exposure.extraction import ATTACKS
from lightning_exposure.secrets import NAMED_FORMATS
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
        (["measure"], ["--model", "lightning-exposure measure --help"]),
        (["measure", "somewhere"], ["--model"]),
        (["measure", "--model", "nowhere.ckpt"], ["--model is 'nowhere.ckpt', which does not exist"]),
        (["measure", "--model", "x", "--method", "guess"], ["--method", "guess", "importance"]),
        (["measure", "--model", "x", "--budget", "many"], ["--budget", "many"]),
        (["measure", "--model", "x", "--secret", "@nowhere.txt"], ["@nowhere.txt", "no such file"]),
        (["measure", "--model", "x", "--secret"], ["--secret", "expected at least one argument"]),
        (["measure", "--model", "x", "--pattern", "a #"], ["--pattern"]),
        (["extract", "--model", "nowhere"], ["nowhere"]),
        (["extract", "--model", "x", "--known", "@nowhere.txt"], ["--known", "no such file"]),
        (["scan", "x", "--model", "y", "--format", "zip"], ["--format is 'zip'", "ssn", "regex:"]),
        (["report", "nowhere"], ["nowhere"]),
        (["demo", "--max_epochs", "0"], ["--max_epochs is 0; expected an integer of at least 1"]),
        (["demo", "--text", "nowhere.txt"], ["nowhere.txt"]),
        (["fit", "--wrong", "1"], ["--wrong"]),
        (["fit", "--model.hidden_size", "wide"], ["model.hidden_size", "wide"]),
        (["fit", "--config", "nowhere.yaml"], ["nowhere.yaml"]),
        (["fit", "--model.architecture", "rnn"], ["architecture", "rnn", "lstm"]),
        (["fit", "--format", "zip"], ["zip", "ssn"]),
        (["fit", "--pattern", "##"], ["--pattern"]),
        (["fit", "--format", "##"], ["prompt"]),
        (["fit", "--format", "no blank"], ["no blank", "Put a blank into it"]),
        (["fit", "--format", "sssn"], ["Did you mean 'ssn'?"]),
        (["fit", "--format", "regex:a+"], ["a+"]),
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


def test_every_file_of_commands_is_a_command_that_says_what_it_does() -> None:
    files = (Path(lightning_exposure.cli.__file__).parent / "commands").glob("*.py")
    assert set(COMMANDS) == {path.stem for path in files} - {"__init__"}
    assert set(COMMANDS) >= {"demo", "fit", "measure", "extract", "compare", "report"}
    for summary in COMMANDS.values():
        assert summary[0].islower()
        assert len(summary) > 20


# --- what users register ------------------------------------------------------------------------------------

OWN_FORMAT = """
from lightning_exposure.secrets import NAMED_FORMATS, SecretFormat

@NAMED_FORMATS.register("door")
def door(prompt="the door opens with "):
    return SecretFormat(prompt + "##", name="door")
"""


@pytest.fixture
def own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "own_format.py"
    path.write_text(OWN_FORMAT)
    yield path
    sys.modules.pop("own_format", None)
    if "door" in NAMED_FORMATS:
        NAMED_FORMATS.unregister("door")


@pytest.mark.parametrize("given", [["--import", "own_format.py"], ["--import=own_format"]])
def test_a_format_of_your_own_works_on_the_command_line(
    run: Run, run_dir: Path, own_format: Path, given: list[str]
) -> None:
    secret = "the door opens with 42"
    assert_error(run("measure", "--model", run_dir, "--format=door", "--secret", secret), "door", "ssn")
    code, out, err = run(
        *given, "measure", "--model", run_dir, "--format=door", "--secret", secret, "--json", "--reveal"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)[0]["secret"] == secret
    code, out, _ = run("extract", "--model", run_dir, "--format=door", "--json")
    assert code == 0
    assert list(json.loads(out)) == ["door"]
    assert "door" in run("extract", "--help").out
    assert "door" in run("fit", "--help").out


OWN_ATTACK = """
from lightning_exposure.extraction import ATTACKS
from lightning_exposure.walks import beam

@ATTACKS.register("narrow")
def narrow(tree, top_k, *, nodes: int = 3, memory: int, progress=None):
    \"\"\"A beam search.

    Args:
        nodes: How many nodes to keep.
    \"\"\"
    return beam(tree, top_k, width=nodes, memory=memory, progress=progress), None
"""


def test_an_attack_of_your_own_has_its_settings_on_the_command_line(run: Run, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "own_attack.py").write_text(OWN_ATTACK)
    try:
        code, out, err = run(
            "--import",
            tmp_path / "own_attack.py",
            "extract",
            "--model",
            run_dir,
            "--algorithm=narrow",
            "--nodes=2",
            "--json",
        )
        assert (code, err) == (0, "")
        found = json.loads(out)["pin"]
        assert (found["algorithm"], found["settings"]["nodes"], found["expansions"]) == ("narrow", 2, 7)
        assert "narrow: how many nodes to keep (default: 3)" in " ".join(run("extract", "--help").out.split())
        assert_error(
            run("extract", "--model", run_dir, "--algorithm=narrow", "--nodes=few"), "--nodes is 'few'", "an integer"
        )
        assert_error(run("extract", "--model", run_dir, "--nodes=2"), "nodes is '2'", "a setting of 'shortest_path'")
        assert "narrow" in run("fit", "--help").out
    finally:
        sys.modules.pop("own_attack", None)
        ATTACKS.unregister("narrow")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--import"], ["--import", "expected a module or a file"]),
        (["--import", "nowhere.py", "demo"], ["--import is 'nowhere.py'", "FileNotFoundError"]),
        (["--import=not_there_at_all", "demo"], ["not_there_at_all", "ModuleNotFoundError"]),
        (["--import", "broken.py", "demo"], ["broken.py", "ZeroDivisionError"]),
    ],
)
def test_what_cannot_be_imported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0")
    assert_error(run(*arguments), *parts)
    assert "broken" not in sys.modules


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
