"""What pages list is what there is."""

from __future__ import annotations

import re
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
    ExtractionCallback,
    ScanCallback,
    SecretFormat,
)
from lightning_exposure.measuring._metrics import SUMMARIES
from tests.docs.blocks import blocks_of
from tests.docs.running import ROOT
from tests.docs.small_models import parts, trained

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
            MaxNorm(),
            DifferentialPrivacy(
                noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5, post_processing=["MaxNorm"]
            ),
        ],
    )  # fmt: skip
    trainer.fit(model, CanaryDataModule(loader, canaries, encode=encode))
    logged = logger.names | set(trainer.callback_metrics)
    ids = "|".join(re.escape(canary.id) for canary in canaries)
    found = {re.sub(rf"/(?:{ids})$", "/<id>", name) for name in logged if "/" in name}
    # Nothing was slow enough to be cut.
    assert "cut" in SUMMARIES
    assert listed_metrics() == found | {"exposure/cut"}


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
