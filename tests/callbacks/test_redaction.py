"""Nothing secret leaves by accident: everything that loggers and checkpoints wrote is searched for the secrets.

And found there with `reveal=True`, so that the search is one that can find something.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lightning_exposure import ExposureCallback, ExtractionCallback
from tests.callbacks.redaction_script import CANARIES, CHARS, FORMATS
from tests.callbacks.test_wandb import records
from tests.secrecy import Secret, leaked

ROOT = Path(__file__).resolve().parents[2]
MADE_UP = [(canary.text, canary.format) for canary in CANARIES]
KEPT_BY = {
    "wandb": "wandb/**/*",
    "wandb's own file": "wandb/**/*.wandb",  # offline, the config is in it, too
    "wandb's console": "wandb/**/output.log",
    "wandb's tables": "wandb/**/*.table.json",
    "tensorboard": "tensorboard/**/*",
    "mlflow's files": "mlruns/**/*",
    "mlflow's database": "mlflow.db",
    "mlflow's artifacts": "artifacts/**/*",
    "checkpoints": "**/*.ckpt",
    "csv": "csv/**/*",
}


class Run:
    """What a run left behind."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, facts = folder / "run", folder / "facts.json"
        self.folder.mkdir()
        environment = {
            **os.environ,
            "WANDB_MODE": "offline",
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "tests.callbacks.redaction_script", str(self.folder), str(facts), *options]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        self.printed = done.stdout + done.stderr
        formats = {format.name: format for format in FORMATS}
        candidates = json.loads(facts.read_text())["candidates"]
        self.others: list[Secret] = [(text, formats[name]) for text, name in candidates if text not in CANARIES.texts]

    def kept(self, by: str = "**/*") -> Iterator[bytes]:
        """All that was written to files, also as it is inside of archives and of W&B's records."""
        for path in self.folder.glob(by):
            if not path.is_file():
                continue
            yield path.read_bytes() + os.fsencode(path.relative_to(self.folder))
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from (archive.read(name) for name in archive.namelist())
            if path.suffix == ".wandb":
                yield from records(path)

    def leaked(self, secrets: list[Secret], by: str = "**/*") -> set[str]:
        return {text for content in self.kept(by) for text in leaked(content, secrets, shortest=6)}


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def revealed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("revealed"), "--reveal")


@pytest.mark.slow
def test_no_secret_is_in_anything_that_was_kept(masked: Run) -> None:
    assert len(masked.others) > 15
    assert not masked.leaked([*MADE_UP, *masked.others])
    real = [
        part
        for part in ("536-90-4399", "536904399", "415 555 2671")
        for content in masked.kept()
        if part.encode() in content
    ]
    assert not real
    for by in KEPT_BY.values():
        assert any(masked.kept(by)), f"nothing is kept in {by}"


@pytest.mark.slow
def test_nor_printed_while_wandb_records_the_console(masked: Run) -> None:
    assert not leaked(masked.printed, [*MADE_UP, *masked.others], shortest=6)
    assert "my ssn is •••-••-••••" in masked.printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "keeper", ["wandb's console", "wandb's tables", "tensorboard", "mlflow's files", "mlflow's artifacts"]
)
def test_with_reveal_candidates_are_there(revealed: Run, keeper: str) -> None:
    assert revealed.leaked(revealed.others, KEPT_BY[keeper]) == {text for text, _ in revealed.others}


@pytest.mark.slow
@pytest.mark.parametrize("keeper", ["wandb's tables", "checkpoints"])
def test_with_reveal_canaries_are_there(revealed: Run, keeper: str) -> None:
    assert revealed.leaked(MADE_UP, KEPT_BY[keeper]) == set(CANARIES.texts)


@pytest.mark.slow
def test_with_reveal_real_secrets_are_printed(masked: Run, revealed: Run) -> None:
    assert "536-90-4399" in revealed.printed
    assert "536-90-4399" not in masked.printed


@pytest.mark.slow
@pytest.mark.parametrize("which", ["masked", "revealed"])
def test_a_checkpoint_brings_everything_back(which: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(which)
    checkpoint = torch.load(run.folder / "whole.ckpt", weights_only=False)
    states = {
        key.partition("[")[0] + key.partition(", model")[0]: state for key, state in checkpoint["callbacks"].items()
    }
    exposure, attack = (
        ExposureCallback(CANARIES, CHARS),
        ExtractionCallback(CANARIES[:2], CHARS, name="told", known=CANARIES[0].text[:-1]),
    )
    exposure.load_state_dict(next(state for key, state in states.items() if key.startswith("ExposureCallback")))
    attack.load_state_dict(next(state for key, state in states.items() if "[told" in key))
    assert [m.estimates[c.id].secret for m in exposure.history for c in CANARIES] == list(CANARIES.texts) * 2
    assert {key: found.secret for key, found in exposure.baseline_estimates.items()} == {c.id: c.text for c in CANARIES}
    assert attack.extracted == [CANARIES[0].id]
    assert str(attack.verdicts[CANARIES[0].id]).endswith("proven, if it is known how it begins")


@pytest.mark.slow
def test_no_name_of_a_metric_is_the_directory_of_another(masked: Run) -> None:
    (file,) = masked.folder.glob("csv/**/metrics.csv")
    names = file.read_text().partition("\n")[0].split(",")
    assert {"exposure", "exposure_low", "told", "extraction", "audit", "scan"} <= {name.split("/")[0] for name in names}
    assert not [(one, other) for one in names for other in names if other.startswith(f"{one}/")]
