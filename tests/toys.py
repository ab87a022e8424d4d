"""Small models and tokenizers for tests: random, but not flat, so that secrets differ in cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def sharpened(module: nn.Module, seed: int, scale: float = 3.0, *, dtype: torch.dtype = torch.float64) -> Any:
    """The module with random weights that are large enough to make some strings much more likely than others."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values * scale / max(1, parameter.shape[-1]) ** 0.5)
    return module.to(dtype).eval()


class Recurrent(nn.Module):
    """Forward takes and returns a state: an LSTM's pair or a GRU's tensor."""

    def __init__(self, vocab_size: int, cell: type[nn.RNNBase] = nn.LSTM, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.cell = cell(width, width, num_layers=2, batch_first=True)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        features, state = self.cell(self.embed(tokens), state)
        return self.out(self.drop(features)), state


class Nested(nn.Module):
    """Two recurrent layers, their states in a dict of different containers, one of them batch-first."""

    def __init__(self, vocab_size: int, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.first = nn.GRU(width, width, batch_first=True)
        self.second = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor, memory: Any = None) -> tuple[Tensor, Any]:
        first, second = (None, None) if memory is None else (memory["gru"].transpose(0, 1), tuple(memory["lstm"]))
        features, first = self.first(self.embed(tokens), None if first is None else first.contiguous())
        features, second = self.second(features, second)
        return self.out(features), {"gru": first.transpose(0, 1), "lstm": list(second)}


class Stateless(nn.Module):
    """A causal model without a state: every position sees the decayed sum of what stands before it."""

    def __init__(self, vocab_size: int, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.mix = nn.Linear(width, width)
        self.out = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.embed(tokens)
        steps = torch.arange(tokens.shape[1], device=tokens.device, dtype=features.dtype)
        decay = torch.tril(0.7 ** (steps[:, None] - steps[None, :]))
        return self.out(torch.tanh(self.mix(decay @ features)))


class Constant(nn.Module):
    """Gives every string the same cost per token: all secrets tie."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits.expand(*tokens.shape, -1)


class Table(nn.Module):
    """The probabilities of the next digit, as a function of the digits so far; the rest goes to one other token."""

    def __init__(self, tokenizer: Any, digits: Callable[[str], list[float]]) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self._tokenizer = tokenizer
        self._digits = digits
        self._ids = [tokenizer.encode(str(digit))[0] for digit in range(10)]
        self._rows: dict[str, Tensor] = {}

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.stack([self._row(row).expand(tokens.shape[1], -1) for row in tokens.tolist()])

    def _row(self, tokens: list[int]) -> Tensor:
        prefix = "".join(c for c in self._tokenizer.decode(tokens) if c.isdigit())
        if prefix not in self._rows:
            chances = torch.full((self._tokenizer.vocab_size,), 1e-9, dtype=torch.float64)
            chances[self._ids] = torch.tensor(self._digits(prefix), dtype=torch.float64)
            chances[self._tokenizer.encode("z")[0]] = max(1e-9, 1 - sum(self._digits(prefix)))
            self._rows[prefix] = (chances / chances.sum()).log()
        return self._rows[prefix]


class MergingTokenizer:
    """Characters and some merged tokens; encodes by the longest match from the left."""

    def __init__(self, characters: Iterable[str], merged: Sequence[str] = ("12", "7-", " 3")) -> None:
        self.vocabulary = sorted(set(characters)) + list(merged)
        longest_first = sorted(self.vocabulary, key=len, reverse=True)
        self._ids = {symbol: i for i, symbol in enumerate(self.vocabulary)}
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    def encode(self, text: str) -> list[int]:
        return [self._ids[symbol] for symbol in self._pattern.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.vocabulary[i] for i in ids)
