"""Modules that are not what they seem: each is a healthy network that was spoilt in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from lightning_exposure import SecretFormat
from lightning_exposure.tokenization import CharTokenizer

CHARS = CharTokenizer.from_text("my pin is 0123456789-z")
SIZE = CHARS.vocab_size
PIN = SecretFormat("my pin is ##-##")


class Network(nn.Module):
    """A healthy LSTM that returns logits only; the ways to spoil it are below."""

    def __init__(self, *, batch_first: bool = True, bidirectional: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12)
        self.cell = nn.LSTM(12, 12, num_layers=2, batch_first=batch_first, bidirectional=bidirectional)
        self.out = nn.Linear(24 if bidirectional else 12, SIZE)

    def forward(self, tokens: Tensor) -> Any:
        logits: Tensor = self.out(self.cell(self.embed(tokens))[0])
        return logits


class Transformer(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 16)
        self.places = nn.Embedding(64, 16)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False
        )
        self.out = nn.Linear(16, SIZE)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Any:
        features = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        mask = torch.triu(torch.full((tokens.shape[1],) * 2, float("-inf"), dtype=features.dtype), 1)
        logits: Tensor = self.out(self.layers(features, mask=mask if self.causal else None))
        return logits


class Shifted(Network):
    """Shifts its input, as a decoder does that is given its own labels."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens[:, :-1], (1, 0), value=0))


class ShiftedTwice(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens, (2, 0), value=1)[:, :-2])


class Ahead(Network):
    """Gives the logits one position early."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens[:, 1:], (0, 1), value=0))


class AlwaysDropped(Network):
    def forward(self, tokens: Tensor) -> Any:
        return self.out(dropout(self.cell(self.embed(tokens))[0], 0.1))


class Probabilities(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).softmax(-1)


class LastProbabilities(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens)[:, -1].softmax(-1)


class OverTheBatch(Network):
    """Normalizes over the rows of a batch, in eval mode too."""

    def forward(self, tokens: Tensor) -> Any:
        features = self.cell(self.embed(tokens))[0]
        return self.out(features - features.mean(0, keepdim=True))


class KeepsItsState(Network):
    """Goes on where the last call ended."""

    hidden: Any = None

    def forward(self, tokens: Tensor) -> Any:
        if self.hidden is None or self.hidden[0].shape[1] != len(tokens):
            self.hidden = None
        features, self.hidden = self.cell(self.embed(tokens), self.hidden)
        return self.out(features)


class LastShifted(Network):
    """The logits of the last position alone, which does not see the last token."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(pad(tokens[:, :-1], (1, 0), value=0))[:, -1:]


class TimeFirstLast(Network):
    """The logits of the last row, which it takes for the last token."""

    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens)


class StateButBothWays(nn.Module):
    """Carries the state of its forward direction; the backward one begins anew, so that the last logits are right."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, 12)
        self.there, self.back = (nn.GRU(12, 12, batch_first=True) for _ in range(2))
        self.out = nn.Linear(24, SIZE)

    def forward(self, tokens: Tensor, hidden: Any = None) -> Any:
        features = self.embed(tokens)
        there, hidden = self.there(features, hidden)
        back = self.back(features.flip(1))[0].flip(1)
        return self.out(torch.cat([there, back], -1)), hidden


class ByPlace(Network):
    """Encodes positions as if the first dimension were time."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(4096, 1, 12))

    def forward(self, tokens: Tensor) -> Any:
        return self.out(self.cell(self.embed(tokens) + self.places[: len(tokens)])[0])


class Percent(Network):
    def forward(self, tokens: Tensor) -> Any:
        return super().forward(tokens).softmax(-1) * 100


class NegativeLogProbabilities(Network):
    def forward(self, tokens: Tensor) -> Any:
        return -super().forward(tokens).log_softmax(-1)


LIARS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "time first": (lambda: Network(batch_first=False), r"reads token ids as \(time, batch\).*time_first=True"),
    "bidirectional": (lambda: Network(bidirectional=True), r"is not causal.*cell is bidirectional"),
    "no mask": (lambda: Transformer(causal=False), "is not causal.*causal mask"),
    "state, both ways": (StateButBothWays, "is not causal"),
    "ahead": (Ahead, "is not causal"),
    "shifted": (Shifted, "shifts its input.*shift the labels"),
    "shifted twice": (ShiftedTwice, "shifts its input"),
    "last, shifted": (LastShifted, "shifts its input"),
    "dropout": (AlwaysDropped, r"different logits when it reads the same text again.*training=self.training"),
    "keeps its state": (KeepsItsState, "different logits.*begin every text anew"),
    "probabilities": (Probabilities, "returns probabilities.*Return logits"),
    "last probabilities": (LastProbabilities, "returns probabilities"),
    "percent": (Percent, "returns probabilities.*sum to 1.*Return logits"),
    "negative log-probabilities": (NegativeLogProbabilities, "negative log-probabilities.*Return their negative"),
    "over the batch": (OverTheBatch, "other rows are changed"),
    "by place": (ByPlace, "at another place of the batch"),
}
"""Each with what is said when it is refused."""


def made(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().eval()
