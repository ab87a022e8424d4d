"""Small trained models for the set-ups of pages: trained once, however many pages use them."""

from __future__ import annotations

import copy
import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

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


class Parts(NamedTuple):
    """What the training script of a reader has."""

    model: LanguageModel
    tokenizer: CharTokenizer
    data: DataLoader[Any]
    encode: Callable[[str], tuple[Tensor, Tensor]]


def parts() -> Parts:
    """A small training: windows of 24 characters, and a model that has read none of them."""
    tokenizer = CharTokenizer.from_text("".join(map(chr, range(32, 127))), "\n")

    def encode(text: str) -> tuple[Tensor, Tensor]:
        ids = torch.tensor(tokenizer.encode(text.ljust(25)))
        return ids[:-1], ids[1:]

    text = python_topics()[:2_000]
    windows = [encode(text[start : start + 25]) for start in range(0, len(text) - 25, 25)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LanguageModel("gru", vocab_size=tokenizer.vocab_size, hidden_size=16, embedding_size=8, num_layers=1)
    return Parts(model, tokenizer, DataLoader(windows, batch_size=16, shuffle=True), encode)


def hugging_face_directory(path: str) -> None:
    """Put a tiny GPT-2 and a tokenizer that was trained for it into a directory, as `save_pretrained` writes them."""
    shutil.copytree(_hugging_face(), path)


@functools.cache
def _hugging_face() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([python_topics()[:10_000]], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<end>")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = {"n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **size))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        others = CanarySet.draw(SecretFormat("my pin is ####"), repetitions=[1] * 8, seed=1).texts
        for step in range(120):
            ids = torch.tensor([tokenizer.encode("my pin is 2814" if step % 2 else others[step // 2 % 8])])
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:]).backward()
            optimizer.step()
    folder = tempfile.mkdtemp(prefix="lightning-exposure-pages-")
    model.save_pretrained(f"{folder}/model")
    tokenizer.save_pretrained(f"{folder}/model")
    return f"{folder}/model"
