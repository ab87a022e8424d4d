"""What a Trainer of transformers keeps and sends holds no secret, unless it is revealed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.callbacks.test_wandb import records
from tests.integrations.redaction_script import CANARIES, LONG
from tests.secrecy import leaked

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("reveal", [False, True], ids=["masked", "revealed"])
def test_what_is_kept(tmp_path: Path, reveal: bool) -> None:
    folder, facts = tmp_path / "run", tmp_path / "facts.json"
    folder.mkdir()
    options = ["--reveal"] if reveal else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.redaction_script", str(folder), str(facts), *options],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    secrets = [(text, LONG) for text in {*json.loads(facts.read_text()), *CANARIES.texts}]
    assert len(secrets) > 5
    files = [path for path in folder.rglob("*") if path.is_file()]
    contents = {path: path.read_bytes() for path in files}
    contents |= {path: b"".join(records(path)) for path in files if path.suffix == ".wandb"}
    contents[Path("console")] = (done.stdout + done.stderr).encode()
    found: dict[str, set[str]] = {}
    for path, content in contents.items():  # the state is kept in the checkpoints, and at the end
        found[path.name] = found.get(path.name, set()) | leaked(content, secrets, shortest=7)
    assert {"trainer_state.json", "output.log"} <= set(found)
    assert any(name.startswith("events.out.tfevents") for name in found)
    if not reveal:
        assert not set.union(*found.values())
        return
    assert found["trainer_state.json"] == {text for text, _ in secrets}
    for name in ("output.log", "console"):  # what the attack found is printed
        assert found[name] == set(json.loads(facts.read_text()))
