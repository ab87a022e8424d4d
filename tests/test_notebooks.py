"""In a notebook: results show as small tables, figures as pictures, and progress bars do not get in the way."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure import CanarySet, ExposureEstimate, Extraction, LeakEstimate, SecretFormat
from lightning_exposure.extraction import Candidate
from lightning_exposure.privacy import audit
from lightning_exposure.report import Measurement, RunRecord
from lightning_exposure.report.comparison import Comparison, Outcome
from lightning_exposure.report.figures.paper import exposure_over_training
from lightning_exposure.report.scan import Scan, ScannedSecret
from lightning_exposure.secrets import Redaction

TEXT = "key <b>&7"
HIDDEN = Redaction().text(TEXT)
CANARIES = CanarySet.draw(SecretFormat("pin <###>", name="pin"), repetitions=[1, 4], seed=0)
ESTIMATE = ExposureEstimate(TEXT, 7.25, 7.0, 7.5, "importance", 9.1, 3.0, 29.9, False, 0.95, 9, rests_on="a sample")
EXTRACTION = Extraction((Candidate(TEXT, 1.5, 1),), True, 1.5, "proof", 1234, 0.1, "shortest_path", {})

SCANNED = ScannedSecret("ssn", TEXT, TEXT, 3, (("mail <1>", 4),), estimate=ESTIMATE, extracted=False)
SCAN = Scan((SCANNED,), calibrated=True, alpha=0.05, confidence=0.95)
COMPARISON = Comparison([Outcome("sgd", None, math.inf, 1.86, ESTIMATE, False, False, 60.0)])


class Text(HTMLParser):
    """What a browser shows of a piece of HTML; it has to be well formed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.shown: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def record() -> RunRecord:
    estimates = {
        c.id: ExposureEstimate(c.text, 3.0, 3.0, 3.0, "exact", 125, 9.0, 9.97, False, 0.95, 9) for c in CANARIES
    }
    return RunRecord(CANARIES, history=[Measurement(1, 10, None, None, 0.1, estimates)])


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (ESTIMATE, [HIDDEN, "7.25 of 29.90 bits", "7.00 to 7.50", "about 9.1", "a sample"]),
        (EXTRACTION, [HIDDEN, "shortest_path: proven to be the likeliest; 1,234 expansions", "1.50"]),
        (LeakEstimate(TEXT, low=0.01, high=0.02, share=0.1, expansions=3), [HIDDEN, "at least 35, at most 69"]),
        (LeakEstimate(TEXT, low=0.0, high=0.0, share=0.0, expansions=3), [HIDDEN, "it never leaks"]),
        (audit([3.0, 4.0, 5.0], [0.0, 1.0, 2.0]), ["Privacy audit", "3 inserted, 3 held out", "1.000"]),
        (record(), [CANARIES[0].id, CANARIES[1].id, "3.00 to 3.00", "how many guesses find it"]),
        (RunRecord(CANARIES), [CANARIES[0].id, RunRecord(CANARIES).verdict]),
        (SCAN, [SCAN.name(SCANNED), "[7.0, 7.5]", "memorized"]),
        (COMPARISON, ["sgd", "infinite", "7.00", COMPARISON.verdict]),
    ],
)
def test_a_result_is_a_small_table_without_its_secrets(result: Any, shown: list[str]) -> None:
    found = Text(result._repr_html_())
    assert set(shown) <= set(found.shown)
    assert TEXT not in "".join(found.shown)
    assert found.tags <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}


def test_a_figure_is_a_picture_without_pyplot() -> None:
    figure: Any = exposure_over_training(record())
    assert figure._repr_png_().startswith(b"\x89PNG")


CELLS = [
    """
import lightning as L, torch
from torch.utils.data import DataLoader
from lightning_exposure import CanaryDataModule, CanarySet, CharTokenizer, ExposureCallback, SecretFormat
from lightning_exposure.modules import LanguageModel

canaries = CanarySet.draw(SecretFormat("pin ##"), repetitions=[1, 8], seed=0)
tokenizer = CharTokenizer.from_text("pin 0123456789")
encode = lambda text: torch.tensor(tokenizer.encode(text))
data = CanaryDataModule(DataLoader([encode("pin 00")] * 4, batch_size=4), canaries, encode=encode)

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.lm = LanguageModel("gru", vocab_size=tokenizer.vocab_size, hidden_size=8, embedding_size=8)
    def forward(self, tokens, state=None):
        return self.lm(tokens, state)
    def training_step(self, batch, index):
        logits, _ = self(batch[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
""",
    """
from lightning.pytorch.callbacks import {bar}
callback = ExposureCallback(canaries, tokenizer)
trainer = L.Trainer(max_epochs=2, accelerator="cpu", callbacks=[callback, {bar}()], logger=False,
                    enable_checkpointing=False, enable_model_summary=False)
trainer.fit(Model(), data)
""",
    "callback.history[-1].estimates[canaries[1].id]",
    """
from lightning_exposure.report import RunRecord
from lightning_exposure.report.figures.paper import exposure_over_training
exposure_over_training(RunRecord(canaries, history=callback.history))
""",
]


@pytest.mark.slow
@pytest.mark.parametrize("bar", ["TQDMProgressBar", "RichProgressBar"])
def test_a_notebook_runs_with_progress_bars_tables_and_figures(
    tmp_path: Path, bar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [nbformat.v4.new_code_cell(code.replace("{bar}", bar)) for code in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    training, estimate, figure = (cell.outputs for cell in notebook.cells[1:])
    kinds = {kind for output in training for kind in output.get("data", {})}
    printed = "".join(output.get("text", "") for output in training)
    assert kinds or "Epoch 1" in printed  # a widget, or lines of text where there are no widgets
    assert "of 6.64 bits" in estimate[0]["data"]["text/html"]
    assert any("image/png" in output.get("data", {}) for output in figure)
