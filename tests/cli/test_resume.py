"""`fit` after a kill: what was saved, who may go on, and that it ends as if nothing had happened."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger

from lightning_exposure.cli import main
from lightning_exposure.cli._saving import EpochSaver, forget
from lightning_exposure.report import RunRecord
from tests.cli.conftest import TINY, Run
from tests.cli.test_program import assert_error

EPOCHS = 3
# Dropout draws random numbers in training, and the learning rate changes after every epoch.
OPTIONS = [*TINY, "--model.dropout=0.2", "--model.scheduler=step", f"--trainer.max_epochs={EPOCHS}"]


def fit(text_file: Path, run_dir: Path, *more: str) -> list[str]:
    return ["fit", *OPTIONS, f"--data.text_or_path={text_file}", f"--run_dir={run_dir}", *more]


def killed(arguments: list[str], *, after: str, then: Callable[[], None] = lambda: None) -> None:
    """Run a command in a process of its own, and kill it as soon as a line begins like this."""
    read, write = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_say_to, args=(write, arguments))
    process.start()
    os.close(write)
    try:
        with os.fdopen(read) as said:
            lines = []
            for line in said:
                lines.append(line)
                if line.startswith(after):
                    break
            else:
                pytest.fail(f"it never came to {after!r}: {lines}")
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)  # alive, and no further
            then()
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def _say_to(file: int, arguments: list[str]) -> None:
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w")
    os._exit(main(arguments))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any, text_file: Path) -> Path:
    """A run that nothing interrupted."""
    path: Path = tmp_path_factory.mktemp("whole") / "run"
    assert main(fit(text_file, path)) == 0
    return path


def assert_same_privacy(whole: dict[str, Any] | None, resumed: dict[str, Any] | None) -> None:
    if whole is None or resumed is None:
        assert whole == resumed
        return
    # The norms are not covered by epsilon, so no checkpoint has those of the epochs before.
    norms, later = whole["norms"], resumed["norms"]
    assert later
    assert norms[-len(later) :] == later
    assert {**whole, "norms": None} == {**resumed, "norms": None}


def assert_same(one: Path, other: Path) -> None:
    weights, others = (torch.load(path / "model.ckpt", weights_only=True)["state_dict"] for path in (one, other))
    assert all(torch.equal(weights[name], others[name]) for name in weights), "bit for bit"
    first, second = RunRecord.load(one), RunRecord.load(other)
    assert second.interrupted is None
    for name in ("canaries", "baseline", "references", "steps", "audit"):
        assert getattr(first, name) == getattr(second, name), name
    assert_same_privacy(first.privacy, second.privacy)
    for here, there in zip(first.history, second.history, strict=True):
        assert (here.epoch, here.step, here.estimates) == (there.epoch, there.step, there.estimates)
        assert (here.train_loss, here.val_loss) == (there.train_loss, there.val_loss)
    assert {name: found.candidates for name, found in first.extractions.items()} == {
        name: found.candidates for name, found in second.extractions.items()
    }
    assert rows(one) == rows(other)


def rows(run_dir: Path) -> list[dict[str, str]]:
    """What was logged, in the order of steps, without clocks."""
    with (run_dir / "metrics.csv").open() as file:
        found = [{name: cell for name, cell in row.items() if "seconds" not in name} for row in csv.DictReader(file)]
    return sorted(found, key=lambda row: (int(row["step"]), sorted(row.items())))


@pytest.mark.slow
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(
    run: Run, whole: Path, text_file: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"

    def meanwhile() -> None:
        assert_error(run(*fit(text_file, run_dir)), "exists already")
        assert_error(run("fit", "--resume", run_dir), "another process (", "is training")

    killed(fit(text_file, run_dir), after="2 ", then=meanwhile)
    assert not (run_dir / "model.ckpt").exists()
    assert run("measure", "--model", run_dir).code == 0, "what was saved can be measured"
    assert_error(run(*fit(text_file, run_dir)), "exists already", f"--resume {run_dir}")
    code, out, err = run("fit", "--resume", run_dir)
    assert (code, err) == (0, "")
    assert not any(line.startswith("1 ") for line in out.splitlines()), "it does not begin anew"
    assert_same(whole, run_dir)
    assert not list(run_dir.glob("resume*"))
    assert_error(run("fit", "--resume", run_dir), "came to its end")


@pytest.mark.slow
@pytest.mark.parametrize(
    "after", ["Run directory", f"{EPOCHS} "], ids=["before anything was saved", "in the attack or just before it"]
)
def test_a_kill_at_the_beginning_and_at_the_end(
    run: Run, whole: Path, text_file: Path, tmp_path: Path, after: str
) -> None:
    run_dir = tmp_path / "run"
    # An attack that takes forever, if nobody ends it.
    slow = ["--extraction.algorithm=sampling", "--extraction.settings.samples=100000000"]
    killed(fit(text_file, run_dir, *slow), after=after)
    config = run_dir / "config.yaml"
    if not config.exists():  # so early that nothing had been written down
        assert_error(run("fit", "--resume", run_dir), "config.yaml does not exist")
        return
    config.write_text((whole / "config.yaml").read_text())  # with the quick attack
    assert run("fit", "--resume", run_dir).code == 0
    assert_same(whole, run_dir)


def test_there_is_a_checkpoint_at_every_moment(tmp_path: Path) -> None:
    class Looks(Callback):
        """While a checkpoint is saved."""

        seen: list[bool] = []  # noqa: RUF012

        def on_save_checkpoint(self, *_: Any) -> None:
            self.seen.append((tmp_path / "resume.ckpt").exists())

    logger = CSVLogger(tmp_path, name="", version="")
    trainer = Trainer(
        max_epochs=3,
        limit_train_batches=1,
        limit_val_batches=0,
        logger=logger,
        log_every_n_steps=1,
        callbacks=[Looks(), EpochSaver(tmp_path, logger)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(BoringModel())
    assert Looks.seen == [False, True, True]
    epochs = [torch.load(tmp_path / name)["epoch"] for name in ("resume.ckpt.before", "resume.ckpt")]
    assert epochs == [1, 2]
    forget(tmp_path)
    assert not list(tmp_path.glob("resume*"))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--resume", "nowhere"], ["nowhere/config.yaml does not exist"]),
        (["--resume", "{run}", "--model.lr=1"], ["--model.lr is 1.0, and was 0.01"]),
        (["--resume", "{run}", "--seed=3"], ["--seed is 3, and was 0"]),
        (["--resume", "{run}"], ["came to its end"]),
    ],
)
def test_what_cannot_go_on(run: Run, whole: Path, arguments: list[str], parts: list[str]) -> None:
    assert_error(run("fit", *(argument.format(run=whole) for argument in arguments)), *parts)


@pytest.mark.slow
def test_another_text_cannot_go_on(run: Run, text_file: Path, tmp_path: Path) -> None:
    text, run_dir = tmp_path / "text.txt", tmp_path / "run"
    text.write_text(text_file.read_text(encoding="utf-8"), encoding="utf-8")
    killed(fit(text, run_dir), after="1 ")
    text.write_text("äöü " * 1000, encoding="utf-8")
    assert_error(run("fit", "--resume", run_dir), "tokenizer.json is not what config.yaml and the text lead to")


def test_a_lock_of_a_dead_process_is_no_obstacle(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("1\n")
    from lightning_exposure.cli._locking import locked

    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").read_text() == f"{os.getpid()}\n"


PRIVATE = ["--privacy.noise_multiplier=0.5", "--privacy.seed=1", "--privacy.accountant=rdp", "--audit.canaries=40"]


@pytest.mark.slow
def test_privacy_and_audit(run: Run, text_file: Path, tmp_path: Path) -> None:
    code, out, _ = run(*fit(text_file, tmp_path / "whole", *PRIVATE))
    assert code == 0
    record = RunRecord.load(tmp_path / "whole")
    assert record.privacy is not None
    assert record.audit is not None
    assert record.audit["inserted"] + record.audit["held_out"] == 40
    assert record.audit["records"] == 1, "each canary of the audit is one window"
    lines = out.splitlines()
    assert any(line.startswith(f"Privacy: epsilon is {record.privacy['epsilon']:.3g} at delta 1e-05") for line in lines)
    assert any(line.startswith("Audit: epsilon is at least ") for line in lines)
    killed(fit(text_file, tmp_path / "run", *PRIVATE), after="2 ")
    assert run("fit", "--resume", tmp_path / "run").code == 0
    assert_same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--privacy.delta=1e-6"], ["--privacy.delta is 1e-06 without --privacy.noise_multiplier"]),
        (["--privacy.noise_multiplier=1", "--privacy.target_epsilon=8"], ["noise_multiplier", "target_epsilon"]),
        (["--privacy.noise_multiplier=-1"], ["noise_multiplier"]),
        (
            ["--privacy.noise_multiplier=1", "--privacy.max_physical_batch_size=0"],
            ["max_physical_batch_size is 0; expected an integer of at least 1"],
        ),
        (["--audit.confidence=0.9"], ["--audit.confidence is 0.9 without --audit.canaries"]),
        (["--audit.canaries=-1"], ["--audit.canaries is -1"]),
        (["--audit.canaries=20", "--data.window=8"], ["--data.window is 8", "audit"]),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_mistakes_leave_nothing_behind(
    run: Run, text_file: Path, tmp_path: Path, arguments: list[str], parts: list[str]
) -> None:
    assert_error(run(*fit(text_file, tmp_path / "run", *arguments)), *parts)
    assert not (tmp_path / "run").exists()
