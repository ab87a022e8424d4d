"""A small training in Hugging Face's Trainer, the way a user would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from lightning_exposure import CanarySet, SecretFormat
from lightning_exposure.data import inject_examples

LINE = "the quick brown fox jumps over my lazy dog 0123456789"
PIN = SecretFormat("my pin is ##")
CANARIES = CanarySet.draw(PIN, repetitions=[0, 1, 12], seed=0)
OFTEN = CANARIES[2]


def characters() -> PreTrainedTokenizerFast:
    """A tokenizer of single characters."""
    alphabet = ["<pad>", *sorted(set("abcdefghijklmnopqrstuvwxyz 0123456789"))]
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token=None))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")


TOKENIZER = characters()


def gpt2(seed: int = 0) -> Any:
    """With dropout, so that a measurement that draws a random number would show in the weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(TOKENIZER), n_positions=32, n_embd=16, n_layer=1, n_head=2,
                bos_token_id=0, eos_token_id=0, pad_token_id=0, loss_type="ForCausalLM",
            )
        )  # fmt: skip


def encode(text: str) -> dict[str, list[int]]:
    ids = TOKENIZER.encode((text + " " + LINE)[:16])
    return {"input_ids": ids, "labels": ids}


def examples(canaries: CanarySet = CANARIES) -> list[dict[str, list[int]]]:
    lines = [encode(LINE[start : start + 16]) for start in range(19)]
    return inject_examples(lines, canaries, encode, seed=0)


def trainer(
    folder: Path,
    *callbacks: TrainerCallback,
    model: Any = None,
    data: Any = None,
    eval_dataset: Any = None,
    **options: Any,
) -> Trainer:
    """A quiet Trainer: four steps an epoch."""
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "dataloader_pin_memory": False,
        "seed": 0,
    }
    return Trainer(
        model=gpt2() if model is None else model,
        args=TrainingArguments(**(defaults | options)),
        train_dataset=examples() if data is None else data,
        eval_dataset=eval_dataset,
        callbacks=list(callbacks),
    )


def same_weights(one: Any, other: Any) -> bool:
    """Bit for bit."""
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
