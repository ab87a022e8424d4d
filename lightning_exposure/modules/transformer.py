"""A causal Transformer language model."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_exposure.errors import ArgumentError

Positions = Literal["learned", "sinusoidal"]
"""How a Transformer knows the place of a token."""


class SelfAttention(nn.Module):
    """Attention of each step to itself and those before it.

    Made of linear layers, because those have per-example gradients: it can be trained privately.

    Args:
        size: Of a step's vector.
        num_heads: How many heads; they divide `size`.
        dropout: The part of the attention weights dropped in training.

    Example:
        >>> SelfAttention(4, num_heads=2, dropout=0.0)(torch.zeros(1, 5, 4)).shape
        torch.Size([1, 5, 4])
    """

    def __init__(self, size: int, *, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.inputs = nn.Linear(size, 3 * size)
        self.outputs = nn.Linear(size, size)
        nn.init.xavier_uniform_(self.inputs.weight)
        nn.init.zeros_(self.inputs.bias)
        nn.init.zeros_(self.outputs.bias)

    def forward(self, signal: Tensor) -> Tensor:
        """Attend within a signal `(batch, time, size)`."""
        queries, keys, values = self.inputs(signal).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        attended: Tensor = self.outputs(mixed.transpose(1, 2).flatten(2))
        return attended


class TransformerLayer(nn.Module):
    """Attention and two linear layers, each on the normalized signal and added to it.

    Example:
        >>> TransformerLayer(4, num_heads=2, dropout=0.0)(torch.zeros(1, 5, 4)).shape
        torch.Size([1, 5, 4])
    """

    def __init__(self, size: int, *, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size)
        self.attention = SelfAttention(size, num_heads=num_heads, dropout=dropout)
        self.norm = nn.LayerNorm(size)
        self.widen = nn.Linear(size, 4 * size)
        self.narrow = nn.Linear(4 * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, signal: Tensor) -> Tensor:
        """Transform a signal `(batch, time, size)`."""
        signal = signal + self.dropout(self.attention(self.attention_norm(signal)))
        wide = self.dropout(nn.functional.gelu(self.widen(self.norm(signal))))
        transformed: Tensor = signal + self.dropout(self.narrow(wide))
        return transformed


class TransformerNetwork(nn.Module):
    """Embedding with positions, Transformer layers that look back only, and a linear layer.

    Args:
        vocab_size: How many tokens there are.
        hidden_size: Size of a token's vector in every layer.
        num_layers: How many layers.
        num_heads: How many attention heads; they divide `hidden_size`.
        max_length: The longest sequence it can read.
        positions: "learned" or "sinusoidal".
        dropout: The fraction of units dropped in training.

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
        positions: Positions = "learned",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.max_length = max_length
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.positions = nn.Embedding(max_length, hidden_size) if positions == "learned" else None
        if self.positions is None:
            self.register_buffer("waves", sinusoids(max_length, hidden_size), persistent=False)
        else:
            nn.init.normal_(self.positions.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(
            *(TransformerLayer(hidden_size, num_heads=num_heads, dropout=dropout) for _ in range(num_layers)),
            nn.LayerNorm(hidden_size),
        )
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time, vocab)` after each of the tokens `(batch, time)`.

        Raises:
            ArgumentError: There are more tokens than `max_length`.
        """
        time = tokens.shape[1]
        if time > self.max_length:
            raise ArgumentError(
                f"tokens is a sequence of {time}; expected at most max_length={self.max_length}. Make the model with a "
                "larger max_length, or give it only the last tokens."
            )
        if self.positions is None:
            places = self.get_buffer("waves")[:time]
        else:
            # For every example by itself, and contiguous: that is how per-example gradients are found.
            places = self.positions(torch.arange(time, device=tokens.device).repeat(len(tokens), 1))
        logits: Tensor = self.head(self.layers(self.dropout(self.embedding(tokens) + places)))
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
