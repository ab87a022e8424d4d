"""Canaries for an audit: each is a window of its own, one record, which moves nothing else in the text."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from lightning_exposure._checks import refusal
from lightning_exposure.data import CanaryDataModule, TextDataModule
from lightning_exposure.secrets import CanarySet


def with_windows(data: TextDataModule, canaries: CanarySet, seed: int) -> CanaryDataModule:
    """The windows of a text, and one more for each canary that is not held out.

    In a running text a canary can lie in two windows, and shifts those behind it: it would be more than one record, and
    an audit could say nothing about one.

    Args:
        data: The text, set up.
        canaries: What to insert.
        seed: Where their places come from.

    Raises:
        ArgumentError: A canary is longer than a window.
    """
    window, tokenizer = data.hparams["window"], data.tokenizer
    dataset: Any = data.train_dataloader().dataset
    longest = max((len(tokenizer.encode(text)) for text in canaries.texts), default=0)
    if longest > window:
        raise refusal("--data.window", window, f"at least {longest} for an audit: a canary is a window of its own")

    def encode(text: str) -> tuple[Tensor, Tensor]:
        """The canary, and behind it some of the text: a different part for each."""
        own = torch.tensor([*tokenizer.encode(text), *tokenizer.encode(" ")])
        start = zlib.crc32(text.encode()) % max(1, len(dataset.ids) - window)
        tokens = torch.cat([own, dataset.ids[start : start + window + 1]])[: window + 1]
        return tokens[:-1], tokens[1:]

    return CanaryDataModule(data, canaries, encode=encode, seed=seed)
