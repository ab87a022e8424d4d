"""`ReportCallback` and `write_report(trainer)`: one page about everything that the callbacks know."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch

from lightning_exposure import AuditCallback, CanarySet, ExposureCallback, ExtractionCallback, ReportCallback
from lightning_exposure.errors import ArgumentError
from lightning_exposure.report import RunRecord, run_record, weights_sha256, write_report
from lightning_exposure.report.pages import run as html
from tests.callbacks.audit_setups import SOME
from tests.callbacks.privacy_setups import privacy
from tests.callbacks.setups import CANARIES, CHARS, Model, loader, trainer
from tests.callbacks.test_recording import QUICK, data_with


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is what takes the time; tests/report looks at the figures."""
    monkeypatch.setattr(html, "pictures", lambda record: [])


class Ends(L.Callback):
    """Ends a training with an error, at the end of its first epoch."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        raise self.error


def fit(folder: Path, *callbacks: L.Callback, canaries: CanarySet = CANARIES, **options: Any) -> L.Trainer:
    torch.manual_seed(0)
    run = trainer(folder, *callbacks, **({"max_epochs": 1} | options))
    run.fit(Model(), data_with(canaries))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[L.Trainer, Path]]:
    """A training whose report is listed before what it reports about."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "pictures", lambda record: [])
        report = ReportCallback(folder / "new" / "report")
        attack = ExtractionCallback(CANARIES, CHARS, budget=500, verbose=False)
        yield fit(folder, report, ExposureCallback(CANARIES, CHARS, **QUICK), attack), folder / "new" / "report"


def test_three_files_that_nobody_else_can_read_secrets_in(run: tuple[L.Trainer, Path]) -> None:
    _, folder = run
    assert sorted(os.listdir(folder)) == ["exposure.json", "model-card.md", "report.html"]
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("exposure.json", "report.html")} == {0o600}


def test_the_page_says_what_a_privacy_officer_asks(run: tuple[L.Trainer, Path]) -> None:
    fitted, folder = run
    page = (folder / "report.html").read_text(encoding="utf-8")
    record = RunRecord.load(folder)
    assert record.verdict.partition("; ")[0] in page
    assert record.model is not None
    assert record.model["sha256"] == weights_sha256(fitted.lightning_module)
    for words in (
        record.model["sha256"],
        f"Model, {record.model['parameters']:,} parameters",
        "canaries were read 31 times, counted one by one",
        "Had the model never seen any of the 2 canaries",
        "(log₂ 2/0.05)",
        "trained without differential privacy",
        "There was no audit.",
        "What to do next",
        "<summary>",
        CANARIES[0].text,
    ):
        assert words in page, words


def test_the_record_is_that_of_the_trainer(run: tuple[L.Trainer, Path]) -> None:
    fitted, folder = run
    written, now = RunRecord.load(folder), run_record(fitted)
    written.date = now.date = None
    written.extractions = now.extractions = {}  # what is no canary is masked in the file
    assert written == now


def test_the_function_writes_the_same_page(run: tuple[L.Trainer, Path], tmp_path: Path) -> None:
    fitted, folder = run
    page = write_report(fitted, tmp_path).read_text(encoding="utf-8")
    dated = re.compile(r"\d+ \w+ \d{4}, \d\d:\d\d UTC")
    assert dated.sub("", page) == dated.sub("", (folder / "report.html").read_text(encoding="utf-8"))


def test_a_page_to_be_passed_on_has_no_secret(run: tuple[L.Trainer, Path], tmp_path: Path) -> None:
    fitted, folder = run
    write_report(fitted, tmp_path, shared=True)
    assert sorted(os.listdir(tmp_path)) == ["model-card.md", "report.html"]
    record = run_record(fitted)
    texts = {canary.text for canary in CANARIES}
    texts |= {candidate.text for attack in record.extractions.values() for candidate in attack.candidates}
    for name in os.listdir(tmp_path):
        content = (tmp_path / name).read_text(encoding="utf-8")
        assert not [text for text in texts if text in content]
    card = (folder / "model-card.md").read_text(encoding="utf-8")
    assert not [text for text in texts if text in card]


def test_reveal_shows_every_candidate(run: tuple[L.Trainer, Path], tmp_path: Path) -> None:
    page = write_report(run[0], tmp_path, reveal=True).read_text(encoding="utf-8")
    (attack,) = run_record(run[0]).extractions.values()
    assert all(candidate.text in page for candidate in attack.candidates)


@pytest.mark.parametrize("error", [ValueError("my pin is 1234"), KeyboardInterrupt()])
def test_an_interrupted_training_has_a_report_that_says_so(tmp_path: Path, error: BaseException) -> None:
    callbacks = [ReportCallback(tmp_path / "report"), ExposureCallback(CANARIES, CHARS, **QUICK), Ends(error)]
    with pytest.raises(SystemExit if isinstance(error, KeyboardInterrupt) else ValueError):  # Lightning's own way
        fit(tmp_path, *callbacks)
    record = RunRecord.load(tmp_path / "report")
    assert record.interrupted == type(error).__name__
    assert len(record.history) == 1
    for name in ("report.html", "model-card.md"):
        content = (tmp_path / "report" / name).read_text(encoding="utf-8")
        assert "The training was interrupted" in content
        assert type(error).__name__ in content
        assert "1234" not in content


def test_an_error_before_training_leaves_nothing(tmp_path: Path) -> None:
    class Refuses(L.Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        fit(tmp_path, ReportCallback(tmp_path / "report"), ExposureCallback(CANARIES, CHARS, **QUICK), Refuses())
    assert not os.listdir(tmp_path / "report")


def test_a_trial_run_writes_nothing(tmp_path: Path) -> None:
    callbacks = [ExposureCallback(CANARIES, CHARS, **QUICK), ReportCallback(tmp_path / "report")]
    fit(tmp_path, *callbacks, fast_dev_run=True)
    assert not os.listdir(tmp_path / "report")


def test_the_weights_are_those_of_the_run_without_it(tmp_path: Path) -> None:
    def weights(*callbacks: L.Callback) -> str:
        torch.manual_seed(0)
        model = Model()
        trainer(tmp_path, *callbacks, max_epochs=1).fit(model, loader())
        return weights_sha256(model)

    exposure = ExposureCallback(CANARIES, CHARS, **QUICK)
    assert weights(exposure, ReportCallback(tmp_path / "report")) == weights()


def test_a_run_that_is_private_and_audited_has_a_report_without_exposure(tmp_path: Path) -> None:
    """The promise and what an audit has found, and of exposure that nothing is known."""
    auditing = AuditCallback(SOME, CHARS)
    private = privacy(noise_multiplier=1.0, max_physical_batch_size=8)
    fit(tmp_path, auditing, private, ReportCallback(tmp_path / "report"), canaries=SOME)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    record = RunRecord.load(tmp_path / "report")
    assert record.privacy is not None
    assert record.privacy["epsilon"] == private.epsilon
    assert record.audit is not None
    assert auditing.result is not None
    assert record.audit["epsilon_lower"] == auditing.result.epsilon_lower
    assert record.audit["assumption"].startswith("none: it holds for every training run")
    for words in ("no exposure was measured", f"{private.epsilon:.4g}", "The audit guessed which of 24 canaries"):
        assert words in page, words
    assert "ExposureCallback(canaries) does, of secrets that were inserted" in page
    assert "Measure again" not in page


@pytest.mark.parametrize("make", [lambda: AuditCallback(SOME, CHARS), privacy])
def test_either_alone_is_something_to_report(make: Any, tmp_path: Path) -> None:
    fit(tmp_path, make(), ReportCallback(tmp_path / "report"), canaries=SOME)
    assert (tmp_path / "report" / "report.html").exists()


# --- refused before training ----------------------------------------------------------------------------------------


def test_a_report_needs_something_to_report(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match="none that it could report of; expected an ExposureCallback, an AuditCallb"
    ):
        fit(tmp_path, ReportCallback(tmp_path))


@pytest.mark.parametrize("below", [False, True])
def test_a_directory_that_is_a_file_is_refused(tmp_path: Path, below: bool) -> None:
    file = tmp_path / "file"
    file.touch()
    directory = file / "report" if below else file
    with pytest.raises(ArgumentError, match=r"directory is .*; expected a directory"):
        fit(tmp_path, ReportCallback(directory), ExposureCallback(CANARIES, CHARS, **QUICK))


@pytest.mark.parametrize("directory", [None, 3, ""])
def test_no_path_is_refused(directory: Any) -> None:
    with pytest.raises(ArgumentError, match=r"directory is .*; expected the path of a directory"):
        ReportCallback(directory)
