"""Small encoder-decoders, and what a target costs by one full pass of the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_exposure import SecretFormat, SecretTree
from lightning_exposure.adapters.encoder_decoder.adapter import Seq2SeqAdapter
from lightning_exposure.modules import EncoderDecoder
from lightning_exposure.tokenization import CharTokenizer
from tests import oracle
from tests.toys import sharpened

# The first three characters stand for no text: padding, the start, and what ends a source.
LETTERS = CharTokenizer("_^$" + "abcdefghijklmnopqrstuvwxyz 0123456789-:")
PADDING, START, END = range(3)
PIN = SecretFormat("meine pin ist ###")
SOURCE = [*LETTERS.encode("my pin is 815"), END]
SMALL = {"vocab_size": LETTERS.vocab_size, "pad_token_id": PADDING, "eos_token_id": END}
BART_LIKE = {
    **SMALL,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "decoder_start_token_id": START,
}


def make_t5() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = transformers.T5Config(**SMALL, **sizes, decoder_start_token_id=PADDING)
    return transformers.T5ForConditionalGeneration(config)


def make_bart() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**BART_LIKE, bos_token_id=START))


def make_marian() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.MarianMTModel(transformers.MarianConfig(**BART_LIKE))


def make_lstm(**settings: Any) -> nn.Module:
    shape = {"vocab_size": LETTERS.vocab_size, "hidden_size": 12, "embedding_size": 8, "num_layers": 2}
    return EncoderDecoder(**{**shape, "padding_id": PADDING, "start_id": START, **settings})


class LogitsOnly(nn.Module):
    """A decoder of somebody else's, that keeps no state: the sum of what it read, and the mean of the source."""

    start_id = START

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS.vocab_size, 12)
        self.mix = nn.Linear(24, 12)
        self.out = nn.Linear(12, LETTERS.vocab_size)

    def encode(self, source: Tensor) -> dict[str, Tensor]:
        return {"mean": self.embed(source).mean(dim=1)}

    def decode(self, tokens: Tensor, memory: dict[str, Tensor]) -> Tensor:
        features = self.embed(tokens).cumsum(dim=1)
        source = memory["mean"][:, None].expand_as(features)
        return self.out(torch.tanh(self.mix(torch.cat([features, source], dim=-1))))


class Forgetful(LogitsOnly):
    """Its state says only how much was read, not what."""

    def decode(self, tokens: Tensor, memory: Any, state: Any = None) -> Any:  # type: ignore[override]
        logits = super().decode(tokens, memory)
        return logits, torch.zeros(len(tokens), 1)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    start: int = START
    scale: float = 3.0

    @cached_property
    def model(self) -> Any:
        torch.manual_seed(0)
        return sharpened(self.make(), seed=1, scale=self.scale)

    def full_passes(self, sources: list[list[int]], targets: list[list[int]]) -> Tensor:
        """The logits of every token of some targets of one length, in one call of the whole model."""
        source, target = torch.tensor(sources), torch.tensor(targets)
        if isinstance(self.model, EncoderDecoder):
            return self.model(source, target)
        inputs = torch.cat([torch.full_like(target[:, :1], self.start), target[:, :-1]], dim=1)
        if isinstance(self.model, LogitsOnly):
            return LogitsOnly.decode(self.model, inputs, self.model.encode(source))
        return self.model(input_ids=source, decoder_input_ids=inputs).logits

    def cost(self, source: list[int], target: list[int], free: int = 0) -> float:
        """Bits of one target after its first tokens, which may be free."""
        return self.many([source], [target], free)[0]

    def many(self, sources: list[list[int]], targets: list[list[int]], free: int = 0) -> list[float]:
        """The same for targets of one length: each is read in full, from its beginning."""
        costs: list[float] = []
        for begin in range(0, len(targets), 500):
            part = slice(begin, begin + 500)
            with torch.no_grad():
                chances = torch.log_softmax(self.full_passes(sources[part], targets[part]).double(), dim=-1)
            picked = chances.gather(2, torch.tensor(targets[part])[:, :, None])[:, free:, 0]
            costs += (-picked.sum(dim=1) / math.log(2)).tolist()
        return costs

    @cache  # noqa: B019
    def costs(self, format: SecretFormat) -> dict[str, float]:
        """Every candidate of a format, for the given source."""
        texts, free = oracle.all_texts(format), oracle.shared_tokens(format, LETTERS)
        return dict(zip(texts, self.many([SOURCE] * len(texts), list(map(LETTERS.encode, texts)), free), strict=True))

    def tree(self, format: SecretFormat = PIN, **options: Any) -> SecretTree:
        return SecretTree(Seq2SeqAdapter(self.model, SOURCE), format, LETTERS, **options)

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("T5", make_t5, start=PADDING, scale=4.0),
    Case("BART", make_bart),
    Case("Marian", make_marian),
    Case("LSTM with attention", make_lstm),
    Case("LSTM without attention", lambda: make_lstm(attention=False)),
    Case("no state", LogitsOnly),
    Case("a state that forgets", Forgetful),
]
KEEPING = CASES[:5]
each_model = pytest.mark.parametrize("case", CASES, ids=str)
