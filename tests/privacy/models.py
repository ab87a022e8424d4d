"""Small models for private training, one of every sort, and something to show them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lightning_exposure.modules import ConvolutionalNetwork, RecurrentNetwork, TransformerNetwork, WaveNet

BATCH, TIME, SIZE, ROWS = 5, 6, 4, 9


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


def vectors(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*(shape or (BATCH, TIME, SIZE)), generator=generator, dtype=torch.float64)


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, ROWS, shape or (BATCH, TIME), generator=torch.Generator().manual_seed(1))


class Scale(nn.Module):
    """A layer that neither this library nor Opacus knows."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factors


class Reshaped(Scale):
    """Another one, which returns a view of its result."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).flatten(1)


class Tied(nn.Module):
    """An embedding whose table is the weight of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, SIZE)
        self.recurrent = nn.LSTM(SIZE, SIZE, batch_first=True)
        self.head = nn.Linear(SIZE, ROWS)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(self.embedding(ids))[0])
        return logits


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: RecurrentNetwork(ROWS, hidden_size=6, embedding_size=5),
    "gru": lambda: RecurrentNetwork(ROWS, cell="gru", hidden_size=6, embedding_size=5),
    "cnn": lambda: ConvolutionalNetwork(ROWS, hidden_size=6, embedding_size=5, num_layers=2),
    "wavenet": lambda: WaveNet(ROWS, hidden_size=6, embedding_size=5, num_layers=2),
    "transformer": lambda: TransformerNetwork(ROWS, hidden_size=8, num_heads=2, max_length=TIME),
    "transformer with sinusoids": lambda: TransformerNetwork(
        ROWS, hidden_size=8, num_heads=2, max_length=TIME, positions="sinusoidal"
    ),
}
