"""What generated texts give away when the model that wrote them is never shown.

A small language model is trained on text with made-up secrets in it, a fair coin for each saying whether it is in: for
a short time, for a long time, and with differential privacy. Each then writes texts, and only the texts are audited.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_exposure import (
    AuditCallback,
    CanaryDataModule,
    CanarySet,
    CharTokenizer,
    DifferentialPrivacy,
    SecretFormat,
)
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.leakage import TextWriter
from lightning_exposure.modules import LanguageModel
from lightning_exposure.report.tables import text_table
from lightning_exposure.synthetic import NeuralScorer, NgramScorer, SyntheticAudit, audit_synthetic

WINDOW = 40
SPAN = 20
DELTA = 1e-5
COLUMNS = (
    "generator", "epsilon promised", "shown by the model", "texts", "shown by the texts", "AUC", "word for word",
    "near copies", "by chance", "texts copied", "by chance",
)  # fmt: skip


class Generator(NamedTuple):
    """A trained model, and what is known of its privacy."""

    model: LanguageModel
    promised: float | None
    shown: float


class Data(NamedTuple):
    """What a generator is trained on, and what it is not."""

    canaries: CanarySet
    tokenizer: CharTokenizer
    train: list[str]
    held_out: list[str]

    def example(self, text: str) -> tuple[Tensor, Tensor]:
        """One record: a line break, and a text that is filled up with spaces."""
        ids = torch.tensor(self.tokenizer.encode("\n" + text.ljust(WINDOW)))
        return ids[:-1], ids[1:]


def make_data(letters: int, canaries: int) -> Data:
    """Help texts in pieces, every other ten of which are held out, and secrets."""
    text = " ".join(python_topics().split())[: 2 * letters]
    pieces = [text[place : place + WINDOW] for place in range(0, len(text) - WINDOW + 1, WINDOW)]
    drawn = CanarySet.draw(
        SecretFormat("my ssn is ###-##-####"), repetitions=[1] * canaries, seed=0, holdout=0.5, purpose="audit"
    )
    train = [piece for place, piece in enumerate(pieces) if place // 10 % 2 == 0]
    held_out = [piece for place, piece in enumerate(pieces) if place // 10 % 2 == 1]
    return Data(drawn, CharTokenizer.from_text("\n", text, *drawn.texts), train, held_out)


def trained(data: Data, epochs: int, units: int, privacy: DifferentialPrivacy | None) -> Generator:
    """A generator; the audit of the model itself is what someone could show who has it."""
    pl.seed_everything(0, verbose=False)
    records = DataLoader([data.example(piece) for piece in data.train], batch_size=32, shuffle=True)
    audit = AuditCallback(data.canaries, data.tokenizer, delta=DELTA)
    model = LanguageModel(
        "lstm", vocab_size=data.tokenizer.vocab_size, hidden_size=units, num_layers=1, embedding_size=64, lr=0.005
    )
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[audit] if privacy is None else [audit, privacy],
    )  # fmt: skip
    trainer.fit(model, CanaryDataModule(records, data.canaries, encode=data.example))
    assert audit.result is not None
    return Generator(model, None if privacy is None else privacy.epsilon, audit.result.epsilon_lower)


def write(generator: Generator, data: Data, texts: int) -> list[str]:
    """The release: what the generator writes behind a line break."""
    writer = TextWriter(generator.model, data.tokenizer, prompt="\n", length=WINDOW, seed=0)
    return [written.text[written.start :].strip() for written in writer.write(range(texts))]


def row(name: str, generator: Generator, found: SyntheticAudit) -> list[str]:
    """A release in the order of `COLUMNS`."""
    assert found.spans is not None
    copied, near, spans = found.verbatim, found.near, found.spans
    return [
        name,
        "none" if generator.promised is None else f"{generator.promised:.2f}",
        f"{generator.shown:.2f}",
        f"{found.texts:,}",
        f"{found.epsilon_lower:.2f}",
        f"{found.combined.auc:.3f}",
        f"{copied.inserted.found} of {copied.inserted.of}",
        f"{near.inserted.found} of {near.inserted.of}",
        f"{near.held_out.found} of {near.held_out.of}",
        f"{spans.training.found} of {spans.training.of}",
        f"{spans.chance.found} of {spans.chance.of}",
    ]


def save(directory: str, texts: list[str], data: Data) -> None:
    """Files for `lightning-exposure synthetic`."""
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    for name, lines in (("texts", texts), ("train", data.train), ("held-out", data.held_out)):
        (path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data.canaries.save(path / "canaries.json")


def main() -> None:
    """Train, write, audit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fast", action="store_true", help="minutes' work in seconds: less text, a smaller model")
    parser.add_argument("--target_epsilon", type=float, default=8.0, help="of the private run (default: %(default)s)")
    parser.add_argument("--save_dir", help="leave the texts of the generator that was trained longest here")
    options = parser.parse_args()
    fast, start = options.fast, time.perf_counter()
    letters, canaries, units, sizes = (4_000, 60, 32, [200]) if fast else (40_000, 400, 128, [1_000, 8_000])
    short, long = (1, 2) if fast else (10, 40)
    data = make_data(letters, canaries)
    scorers = {"ngram": NgramScorer(), "lm": NeuralScorer(networks=1, steps=10) if fast else NeuralScorer()}
    private: Any = {"target_epsilon": options.target_epsilon, "max_grad_norm": 1.0, "delta": DELTA, "verbose": False}
    rows = []
    for name, epochs, privacy in (
        (f"{short} epochs", short, None),
        (f"{long} epochs", long, None),
        (f"{short} epochs, private", short, DifferentialPrivacy(**private, seed=0)),
    ):
        generator = trained(data, epochs, units, privacy)
        texts = write(generator, data, max(sizes))
        for size in sizes:
            found = audit_synthetic(
                texts[:size], data.canaries, train=data.train, held_out=data.held_out, scorers=scorers, delta=DELTA,
                span=SPAN,
            )  # fmt: skip
            rows.append(row(name, generator, found))
        if options.save_dir is not None and epochs == long:
            save(options.save_dir, texts[: min(sizes)], data)
    print(text_table(COLUMNS, rows))
    print(
        f"{len(data.canaries.inserted)} of {len(data.canaries)} canaries and {len(data.train)} texts were trained on; "
        f"delta {DELTA:g}, 95% confidence. The epsilon of a release is at most that of its model."
    )
    print(f"{time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
