"""A training run that ends with a report: two more lines in any Lightning script.

    python examples/with_report.py --out report

The page is report/report.html; beside it are the record of the run and a section for a model card.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning as L  # noqa: N812
import torch

from lightning_exposure import CanarySet, ExposureCallback, ExtractionCallback, ReportCallback, SecretFormat
from lightning_exposure.data import TextDataModule
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.modules import LanguageModel


def main(arguments: list[str] | None = None) -> Path:
    """Train a small model on text with three made-up numbers in it, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="report", help="directory for the report (default: %(default)s)")
    parser.add_argument("--max_epochs", type=int, default=8, help="number of training epochs (default: %(default)s)")
    parser.add_argument("--characters", type=int, default=60_000, help="length of the text (default: %(default)s)")
    options = parser.parse_args(arguments)

    canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[0, 1, 4, 32], seed=0)
    data = TextDataModule(
        python_topics()[: options.characters], canaries=canaries, whole_canaries=True, window=64, batch_size=32
    )
    data.setup()
    torch.manual_seed(0)
    model = LanguageModel("gru", vocab_size=data.tokenizer.vocab_size, hidden_size=96, embedding_size=32, lr=0.005)
    trainer = L.Trainer(
        max_epochs=options.max_epochs,
        accelerator="cpu",
        callbacks=[
            ExposureCallback(canaries, max_share=None),
            ExtractionCallback(canaries, budget=20_000, verbose=False),
            ReportCallback(options.out, verbose=False),
        ],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    page = Path(options.out) / "report.html"
    print(f"Report: {page}")
    return page


if __name__ == "__main__":
    main()
