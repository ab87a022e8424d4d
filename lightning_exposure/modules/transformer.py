"""A causal Transformer language model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_exposure.errors import ArgumentError


class TransformerNetwork(nn.Module):
    """Embedding with positions, Transformer layers that look back only, and a linear layer.

    Args:
        vocab_size: How many tokens there are.
        hidden_size: Size of a token's vector in every layer.
        num_layers: How many layers.
        num_heads: How many attention heads; they divide `hidden_size`.
        max_length: The longest sequence it can read.
        positions: "learned" or "sinusoidal".
        dropout: The part of the units dropped in training.

    Example:
        >>> network = TransformerNetwork(9, hidden_size=4, num_heads=2, max_length=8)
        >>> network(torch.zeros(2, 3, dtype=torch.long)).shape
        torch.Size([2, 3, 9])
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        hidden_size: int = 200,
        num_layers: int = 2,
        num_heads: int = 4,
        max_length: int = 512,
        positions: str = "learned",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        if positions == "learned":
            self.positions: Tensor = nn.Parameter(torch.randn(max_length, hidden_size) * 0.02)
        else:
            self.register_buffer("positions", sinusoids(max_length, hidden_size), persistent=False)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            hidden_size, num_heads, 4 * hidden_size, dropout, "gelu", batch_first=True, norm_first=True
        )
        # Nested tensors are for padded batches, which there are none of here.
        self.layers = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(hidden_size), enable_nested_tensor=False)
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time, vocab)` after each of the tokens `(batch, time)`.

        Raises:
            ArgumentError: There are more tokens than `max_length`.
        """
        time = tokens.shape[1]
        if time > self.max_length:
            raise ArgumentError(
                f"tokens: a sequence of {time}; expected at most max_length={self.max_length}. Make the model with a "
                "larger max_length, or give it only the last tokens."
            )
        hidden = self.dropout(self.embedding(tokens) + self.positions[:time])
        ahead = torch.ones(time, time, dtype=torch.bool, device=tokens.device).triu(1)
        logits: Tensor = self.head(self.layers(hidden, mask=ahead, is_causal=True))
        return logits


def sinusoids(length: int, size: int) -> Tensor:
    """The positions of "Attention is all you need": sines and cosines of geometrically growing wavelengths.

    >>> sinusoids(2, 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    places = torch.arange(length, dtype=torch.float32)[:, None]
    rates = torch.exp(torch.arange(0, size, 2, dtype=torch.float32) * (-math.log(10_000.0) / size))
    table = torch.zeros(length, size)
    table[:, 0::2] = torch.sin(places * rates)
    table[:, 1::2] = torch.cos(places * rates)[:, : size // 2]
    return table
