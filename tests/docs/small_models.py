"""Small trained models for the set-ups of pages: trained once, however many pages use them."""

from __future__ import annotations

import copy
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from lightning_exposure import CanarySet, CharTokenizer, SecretFormat
from lightning_exposure.cli import main
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.modules import LanguageModel


def trained(pattern: str, *texts: str, steps: int = 150, seed: int = 0) -> tuple[Any, CharTokenizer]:
    """A model that has read some texts again and again, and its tokenizer, which knows all of ASCII."""
    model, tokenizer = _trained(pattern, texts, steps, seed)
    return copy.deepcopy(model), tokenizer


@functools.cache
def _trained(pattern: str, texts: tuple[str, ...], steps: int, seed: int) -> tuple[Any, CharTokenizer]:
    tokenizer = CharTokenizer.from_text("".join(map(chr, range(32, 127))), "\n")
    others = CanarySet.draw(SecretFormat(pattern), repetitions=[1] * 8, seed=seed + 1).texts
    rows = [torch.tensor([tokenizer.encode(text)]) for text in (*texts, *others)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LanguageModel("gru", vocab_size=tokenizer.vocab_size, hidden_size=48, embedding_size=16, num_layers=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(steps):
            # Every second time one of the texts, otherwise one of the others.
            row = rows[step // 2 % len(texts)] if step % 2 else rows[len(texts) + step // 2 % len(others)]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(row[:, :-1])[0][0], row[0, 1:]).backward()
            optimizer.step()
    return model.eval(), tokenizer


def run_directory(path: str) -> None:
    """Put what `lightning-exposure fit` leaves into a directory: a tiny model with two planted PINs."""
    shutil.copytree(_run(), path)


@functools.cache
def _run() -> str:
    folder = tempfile.mkdtemp(prefix="lightning-exposure-pages-")
    text = Path(folder) / "text.txt"
    text.write_text(python_topics()[:10_000], encoding="utf-8")
    tiny = [
        "--format=pin", "--repetitions", "1", "30", "--model.architecture=gru", "--model.hidden_size=48",
        "--model.num_layers=1", "--model.embedding_size=16", "--model.lr=0.01", "--data.batch_size=16",
        "--data.window=32", "--exposure.references=64", "--trainer.accelerator=cpu", "--trainer.devices=1",
        "--trainer.max_epochs=4", f"--data.text_or_path={text}",
    ]  # fmt: skip
    assert main(["fit", *tiny, f"--run_dir={folder}/run"]) == 0
    return f"{folder}/run"
