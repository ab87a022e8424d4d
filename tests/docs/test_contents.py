"""What pages list is what there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import lightning as L  # noqa: N812
import pytest
from torch import Tensor

from lightning_exposure import (
    AuditCallback,
    CanaryDataModule,
    CanarySet,
    DifferentialPrivacy,
    ExposureCallback,
    ExposureGate,
    ExtractionCallback,
    ScanCallback,
    SecretFormat,
)
from lightning_exposure.callbacks import LeakCallback
from lightning_exposure.cli import COMMANDS
from lightning_exposure.measuring._metrics import SUMMARIES
from lightning_exposure.secrets import Scanner
from tests.docs.blocks import blocks_of
from tests.docs.running import ROOT
from tests.docs.small_models import parts, trained

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CALLBACKS = ROOT / "docs" / "callbacks.md"
EXTENDING = [block.code for block in blocks_of(ROOT / "docs" / "extending.md") if block.language == "python"]


def listed_metrics() -> set[str]:
    """The names in the first columns of the tables below "Every metric"."""
    tables = CALLBACKS.read_text(encoding="utf-8").partition("## Every metric")[2]
    rows = re.findall(r"^\| (`[^|]+`) \|", tables, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row) if "/" in name}


class Recorder(L.pytorch.loggers.logger.DummyLogger):
    """Keeps the names of all that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def log_metrics(self, metrics: dict[str, float | Tensor], step: int | None = None) -> None:  # type: ignore[override]
        self.names |= set(metrics)


class MaxNorm(L.Callback):
    """Somebody's, which says that it looks at the weights alone."""

    def on_train_batch_end(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.slow
def test_the_table_has_every_metric_that_a_fit_with_all_callbacks_logs(tmp_path: Path) -> None:
    model, tokenizer, loader, encode = parts()
    canaries = CanarySet.draw(SecretFormat.pin(), repetitions=[1] * 60, seed=0, holdout=0.5)
    other, _ = trained("my ssn is ###-##-####", "my ssn is 281-26-5017")
    logger = Recorder()
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=logger, default_root_dir=tmp_path, log_every_n_steps=1,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[
            ExposureCallback(canaries, tokenizer),
            ExtractionCallback(canaries, tokenizer, verbose=False),
            AuditCallback(canaries, tokenizer),
            ScanCallback(["my ssn is 536-90-4399"], tokenizer, reference=other, verbose=False),
            LeakCallback(canaries, tokenizer=tokenizer, samples=8, length=8, verbose=False),
            LeakCallback(
                Scanner(), ["my ssn is 536-90-4399"], tokenizer, samples=8, length=8, name="scanned", verbose=False
            ),
            ExposureGate(max_bits=12, undecided="ignore"),
            MaxNorm(),
            DifferentialPrivacy(
                noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5, post_processing=["MaxNorm"]
            ),
        ],
    )  # fmt: skip
    trainer.fit(model, CanaryDataModule(loader, canaries, encode=encode))
    logged = logger.names | set(trainer.callback_metrics)
    ids = "|".join(re.escape(canary.id) for canary in canaries)
    found = {re.sub(rf"/(?:{ids})$", "/<id>", name.replace("scanned/", "leaks/")) for name in logged if "/" in name}
    found = {re.sub(r"^leaks/(?!rate_|controls_)[\w-]+?_", "leaks/<class>_", name) for name in found}
    # Nothing was slow enough to be cut, and the model wrote no secret that a scanner would find.
    assert "cut" in SUMMARIES
    assert listed_metrics() == found | {"exposure/cut", "leaks/<class>_new"}


def test_the_page_of_the_command_line_has_every_command() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    listed = set(re.findall(r"^\| \[`(\w+)`\]\(#\1\) \|", page, re.MULTILINE))
    assert headings == listed == set(COMMANDS)
    run = "\n".join(block.code for block in blocks_of(ROOT / "docs" / "command-line.md") if block.language == "bash")
    assert not [name for name in COMMANDS if f"lightning-exposure {name}" not in run]


def test_the_gallery_has_every_figure() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    files = [path for path in (ROOT / "lightning_exposure/report/figures").glob("*.py") if path.stem != "style"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    functions = re.findall(r"^def ([a-z]\w*)\([^)]*\) -> Figure:", text, re.MULTILINE)
    assert {"exposure_over_training", "rank_agreement"} <= set(functions)
    assert not [name for name in functions if name not in page]


def test_the_pictures_of_the_gallery_are_there_and_small() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    saved = re.findall(r'"([\w-]+\.png)"\)', page)
    shown = re.findall(r"\]\(figures/gallery/([\w-]+\.png)\)", page)
    assert len(saved) > 3
    assert saved == shown
    assert {path.name for path in (ROOT / "docs/figures/gallery").iterdir()} == set(shown)
    assert all((ROOT / "docs/figures/gallery" / name).stat().st_size < 60 * 1024 for name in shown)


def test_badges_are_true() -> None:
    """They are pictures in the repository, so nothing keeps them true but this."""
    badges = {
        path.stem.removeprefix("badge-"): re.findall(r"<title>(.*)</title>", path.read_text(encoding="utf-8"))[0]
        for path in (ROOT / "docs/figures").glob("badge-*.svg")
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    assert badges == {
        "license": f"license: {project['project']['license']}",
        "python": f"python: {versions[0]} to {versions[-1]}",
        "types": "types: mypy --strict",
        "docs": "code in the docs: run by the tests",
    }
    assert project["tool"]["mypy"]["strict"]
    assert not [page for page in ("README.md", "docs/index.md") if not blocks_of(ROOT / page)]


@pytest.mark.parametrize(
    "registry", ["NAMED_FORMATS", "ADAPTERS", "ATTACKS", "METHODS"], ids=["format", "adapter", "attack", "method"]
)
def test_every_registry_has_a_worked_example(registry: str) -> None:
    """One block registers something, another one uses and checks it."""
    (registering,) = [block for block in EXTENDING if f"@{registry}.register(" in block]
    name = re.search(rf'@{registry}\.register\("(\w+)"\)', registering)
    assert name is not None
    later = EXTENDING[EXTENDING.index(registering) + 1 :]
    assert any("assert" in block for block in later)
    assert any(f'{registry}.unregister("{name[1]}")' in block for block in later)
