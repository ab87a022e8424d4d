"""The page about other trainers: its code runs, prints what the page says, and gives the numbers of Lightning."""

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

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other-trainers.md"


class Still(L.LightningModule):
    """Trains nothing: the weights are what another trainer left."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.lm(batch).logits.mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def lightning_estimates(model: Any, names: dict[str, Any], folder: Path) -> Any:
    callback = ExposureCallback(names["canaries"], names["tokenizer"], baseline=False)
    L.Trainer(
        callbacks=[callback], max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    ).fit(Still(model), torch.utils.data.DataLoader(torch.zeros(2, 4, dtype=torch.long)))  # fmt: skip
    return callback.history[-1].estimates


def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    pieces = re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    printed = ""
    for kind, content in pieces:
        if kind == "text":
            assert "\n".join(line for line in printed.splitlines() if not line.startswith("{")) + "\n" == content
            continue
        with redirect_stdout(StringIO()) as out:
            exec(content, names)
        printed = out.getvalue()
        if "callback" in names and "fabric" not in names:
            found = lightning_estimates(names["trainer"].model, names, tmp_path)
            assert names["callback"].history[-1].estimates == found
        if "exposure" in names:
            found = lightning_estimates(names["model"], names, tmp_path)
            assert names["exposure"].run.history[-1].estimates == found
    for folder in ("report", "fabric", "alone"):
        assert (tmp_path / folder / "report.html").exists()


def test_a_loop_on_fabric_ends_with_the_same_weights_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, fabric = [
        code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if "def new_model" in code or "Fabric(" in code
    ]  # fmt: skip
    without = re.sub(r"(?m)^ *(exposure\.|print).*\n", "", re.sub(r"(?m)^with ExposureLoop.*$", "if True:", fabric))
    weights = []
    for code in (fabric, without):
        names: dict[str, Any] = {}
        with redirect_stdout(StringIO()):
            exec(first + code, names)
        assert ("exposure" in names) == (code is fabric)
        weights.append(names["model"].state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
