"""`fit`: what a run leaves behind, and that a configuration repeats it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_exposure import CanarySet, DifferentialPrivacy
from lightning_exposure.cli.commands.fit import make_parser
from lightning_exposure.cli.models import load_any_model
from lightning_exposure.privacy import AdaptiveClipping
from lightning_exposure.report import MissingExtraError, RunRecord
from tests.cli.conftest import TINY, Run
from tests.cli.test_program import assert_error


def test_a_run_leaves_everything(run_dir: Path) -> None:
    assert {path.name for path in run_dir.iterdir()} == {
        ".lock",
        "canaries.json",
        "config.yaml",
        "exposure.json",
        "hparams.yaml",
        "metrics.csv",
        "model-card.md",
        "model.ckpt",
        "report.html",
        "tokenizer.json",
    }
    record = RunRecord.load(run_dir)
    assert record.canaries == CanarySet.load(run_dir / "canaries.json")
    assert [measurement.epoch for measurement in record.history] == [1, 2, 3, 4]
    assert set(record.baseline) == {"pin-1x", "pin-30x"}
    assert record.settings["model"]["hidden_size"] == 48
    assert record.settings["trainer"]["max_epochs"] == 4
    assert record.extractions["pin"].optimal
    assert record.final is not None
    assert record.steps == record.final.step, "what was measured last is what was attacked"
    ranks = {key: estimate.rank for key, estimate in record.final.estimates.items()}
    assert {key: verdict.proven for key, verdict in record.verdicts.items()} == {
        key: (rank, rank) for key, rank in ranks.items()
    }
    with (run_dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(row["exposure/pin-30x"] for row in rows)
    assert "<html" in (run_dir / "report.html").read_text(encoding="utf-8")
    trained = load_any_model(str(run_dir))
    assert trained.model.hparams["vocab_size"] == trained.tokenizer.vocab_size


def test_a_run_is_never_overwritten(run: Run, run_dir: Path, tmp_path: Path) -> None:
    before = (run_dir / "exposure.json").read_bytes()
    assert_error(run("fit", f"--run_dir={run_dir}"), str(run_dir), "never overwritten")
    assert_error(run("demo", f"--run_dir={run_dir}"), str(run_dir), "never overwritten")
    assert (run_dir / "exposure.json").read_bytes() == before
    file = tmp_path / "file"
    file.touch()
    assert_error(run("fit", f"--run_dir={file}"), str(file))


def test_what_is_said(run: Run, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--trainer.max_epochs=1", "--exposure.baseline=false", f"--data.text_or_path={text_file}"]
    code, out, err = run("fit", *TINY, *options)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    (made,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert lines[0] == f"Run directory: {made.relative_to(tmp_path)}"
    assert lines[2].split() == ["epoch", "train", "val", "pin-1x", "pin-30x"]
    assert lines[3].startswith("1  ")
    assert lines[-2] == f"Report: {made.relative_to(tmp_path) / 'report.html'}"
    assert lines[-1].startswith("Verdict: ")
    assert any(line.startswith("pin-1x ") and line.endswith("proven") for line in lines), "of every canary"


def test_a_configuration_repeats_a_run(run: Run, run_dir: Path, tmp_path: Path) -> None:
    code, _, err = run("fit", f"--config={run_dir / 'config.yaml'}", f"--run_dir={tmp_path / 'again'}")
    assert (code, err) == (0, "")
    first, second = RunRecord.load(run_dir), RunRecord.load(tmp_path / "again")
    assert first.canaries == second.canaries
    for one, other in zip(first.history, second.history, strict=True):
        assert (one.estimates, one.val_loss) == (other.estimates, other.val_loss)


def test_print_config(run: Run, tmp_path: Path) -> None:
    code, out, err = run("fit", "--print_config", "--format", "##", "--model.lr", "0.5", "--repetitions", "3")
    assert (code, err) == (0, "")
    config = yaml.safe_load(out)
    # A pattern may look like a comment of YAML.
    assert (config["format"], config["model"]["lr"], config["repetitions"]) == ("##", 0.5, [3])
    file = tmp_path / "config.yaml"
    file.write_text(out, encoding="utf-8")
    assert yaml.safe_load(run("fit", f"--config={file}", "--print_config").out) == config


def test_callbacks_and_settings_of_the_attack(run: Run, text_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config: dict[str, Any] = {
        "format": "the code is ##",
        "extraction": {"algorithm": "beam", "top_k": 2, "settings": {"width": 7}},
        "trainer": {
            "max_epochs": 5,
            "callbacks": [
                {
                    "class_path": "lightning.pytorch.callbacks.EarlyStopping",
                    "init_args": {"monitor": "exposure/max", "mode": "max", "stopping_threshold": 0.0},
                }
            ],
        },
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    run_dir = tmp_path / "run"
    code, _, err = run("fit", *TINY[1:], f"--config={file}", f"--data.text_or_path={text_file}", f"--run_dir={run_dir}")
    assert (code, err) == (0, "")
    record = RunRecord.load(run_dir)
    assert len(record.history) == 1, "stopped early"
    (attack,) = record.extractions.values()
    assert (attack.algorithm, attack.settings["width"], len(attack.candidates)) == ("beam", 7, 2)


def test_many_canaries_share_two_columns(run: Run, text_file: Path, tmp_path: Path) -> None:
    options = ["--trainer.max_epochs=1", f"--data.text_or_path={text_file}", f"--run_dir={tmp_path / 'run'}"]
    code, out, _ = run("fit", *TINY, *options, "--repetitions", *range(7))
    assert code == 0
    assert out.splitlines()[2].split() == ["epoch", "train", "val", "mean", "max"]


def test_without_the_extra_for_reports(
    run: Run, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> Path:
        raise MissingExtraError('reports need jinja2; install it with pip install "lightning-exposure[report]".')

    monkeypatch.setattr("lightning_exposure.cli.commands.report.write_report", missing)
    options = ["--trainer.max_epochs=1", f"--data.text_or_path={text_file}", f"--run_dir={tmp_path / 'run'}"]
    code, out, err = run("fit", *TINY, *options)
    assert (code, err) == (0, "")
    assert 'No report: reports need jinja2; install it with pip install "lightning-exposure[report]"' in out
    assert f"lightning-exposure report {tmp_path / 'run'}" in out
    assert_error(run("report", tmp_path / "run"), "pip install")


def test_the_help_says_whom_epsilon_is_for_and_that_users_are_not_offered() -> None:
    text = " ".join(make_parser().format_help().split())
    assert "--privacy.max_physical_batch_size" in text
    for left_out in ("--privacy.unit", "--privacy.user", "--privacy.max_records_per_user"):
        assert left_out not in text
    assert "DifferentialPrivacy(unit='user'), is for data that name them, and not offered here" in text


@pytest.mark.parametrize(
    ("given", "clipping"),
    [
        (["--privacy.clipping", "per_layer"], "per_layer"),
        (["--privacy.clipping", "adaptive"], AdaptiveClipping()),
        (["--privacy.clipping.quantile", "0.7"], AdaptiveClipping(quantile=0.7)),
        (["--privacy.clipping", '{"quantile": 0.7, "count_noise": 3}'], AdaptiveClipping(quantile=0.7, count_noise=3)),
        (["--privacy.secure", "true"], "flat"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_ways_to_clip_and_to_draw_go_through_a_configuration(
    given: list[str], clipping: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # as the command does
    parser = make_parser()
    options = parser.parse_args(["--privacy.noise_multiplier", "1", *given])
    (tmp_path / "config.yaml").write_text(parser.dump(options))
    again = parser.parse_args(["--config", str(tmp_path / "config.yaml")])
    for found in (options, again):
        privacy = DifferentialPrivacy(**parser.instantiate_classes(found).privacy)
        assert privacy.clipping == clipping
        assert privacy.secure is ("--privacy.secure" in given)
