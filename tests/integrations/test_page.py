"""The page about other trainers: its numbers are those of Lightning, and its loop trains what it trains without us."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import pytest
import torch

from lightning_exposure import ExposureCallback
from tests.docs.blocks import blocks_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other-trainers.md"
CODE = [block.code for block in blocks_of(PAGE) if block.language == "python"]


class Still(L.LightningModule):
    """Trains nothing: the weights are what another trainer left."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.lm(batch).logits.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def run(code: str, names: dict[str, Any]) -> None:
    with redirect_stdout(StringIO()):
        exec(code, names)


def lightning_estimates(model: Any, names: dict[str, Any], folder: Path) -> Any:
    callback = ExposureCallback(names["canaries"], names["tokenizer"], baseline=False)
    L.Trainer(
        callbacks=[callback], max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    ).fit(Still(model), torch.utils.data.DataLoader(torch.zeros(2, 4, dtype=torch.long)))  # fmt: skip
    return callback.history[-1].estimates


@pytest.mark.parametrize(
    ("trainer", "history", "model"),
    [("Trainer(\n", "callback", "trainer.model"), ("Fabric(", "exposure.run", "model")],
    ids=["transformers", "fabric"],
)
def test_the_numbers_are_those_of_lightning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: str, history: str, model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in (CODE[0], *(code for code in CODE if trainer in code)):
        run(code, names)
    found = lightning_estimates(eval(model, names), names, tmp_path)
    assert eval(history, names).history[-1].estimates == found


def test_a_loop_on_fabric_ends_with_the_same_weights_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (fabric,) = [code for code in CODE if "Fabric(" in code]
    weights = []
    without = re.sub(r"(?m)^ *(exposure\.|print).*\n", "", re.sub(r"(?m)^with ExposureLoop.*$", "if True:", fabric))
    for code in (fabric, without):
        names: dict[str, Any] = {}
        run(CODE[0] + code, names)
        assert ("exposure" in names) == (code is fabric)
        weights.append(names["model"].state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
