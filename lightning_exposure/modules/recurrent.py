"""Recurrent language models: LSTM and GRU."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class RecurrentNetwork(nn.Module):
    """Embedding, LSTM or GRU layers, and a linear layer to the vocabulary.

    Args:
        vocab_size: How many tokens there are.
        cell: "lstm" or "gru".
        hidden_size: Units per layer.
        num_layers: How many layers.
        embedding_size: Size of a token's vector.
        dropout: The fraction of units dropped before, between and after the layers in training.

    Example:
        >>> import torch
        >>> network = RecurrentNetwork(9, hidden_size=4)
        >>> logits, state = network(torch.zeros(2, 3, dtype=torch.long))
        >>> logits.shape
        torch.Size([2, 3, 9])
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        cell: str = "lstm",
        hidden_size: int = 200,
        num_layers: int = 2,
        embedding_size: int = 200,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        layers = nn.LSTM if cell == "lstm" else nn.GRU
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.dropout = nn.Dropout(dropout)
        # With one layer there is nothing between layers, and PyTorch warns about dropout there.
        between = dropout if num_layers > 1 else 0.0
        self.layers: nn.LSTM | nn.GRU = layers(
            embedding_size, hidden_size, num_layers, batch_first=True, dropout=between
        )
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Read tokens `(batch, time)`, going on from a state. Returns logits `(batch, time, vocab)` and the state."""
        hidden, state = self.layers(self.dropout(self.embedding(tokens)), state)
        return self.head(self.dropout(hidden)), state
