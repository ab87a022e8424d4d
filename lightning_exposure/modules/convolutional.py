"""A causal convolutional language model."""

from __future__ import annotations

from torch import Tensor, nn


def convolve_causally(layer: nn.Conv1d, signal: Tensor) -> Tensor:
    """Convolve a signal `(batch, channels, time)` without looking ahead: it is padded on the left only.

    The layer stays a plain `nn.Conv1d`, because of those it is known how to train them privately.

    Example:
        >>> import torch
        >>> convolve_causally(nn.Conv1d(4, 8, kernel_size=3, dilation=2), torch.zeros(1, 4, 5)).shape
        torch.Size([1, 8, 5])
    """
    reach = (layer.kernel_size[0] - 1) * layer.dilation[0]
    convolved: Tensor = layer(nn.functional.pad(signal, (reach, 0)))
    return convolved


class ConvolutionalNetwork(nn.Module):
    """Embedding, residual causal convolutions, each with twice the dilation of the one before, and a linear layer.

    Args:
        vocab_size: How many tokens there are.
        hidden_size: Channels per layer.
        num_layers: How many layers; together they see `1 + (kernel_size - 1) * (2**num_layers - 1)` tokens.
        embedding_size: Size of a token's vector.
        kernel_size: How many steps a layer looks at.
        dropout: The fraction of channels dropped after each layer in training.

    Example:
        >>> import torch
        >>> ConvolutionalNetwork(9, hidden_size=4)(torch.zeros(2, 3, dtype=torch.long)).shape
        torch.Size([2, 3, 9])
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        hidden_size: int = 200,
        num_layers: int = 4,
        embedding_size: int = 200,
        kernel_size: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.inputs = nn.Linear(embedding_size, hidden_size)
        self.layers = nn.ModuleList(
            nn.Conv1d(hidden_size, hidden_size, kernel_size, dilation=2**depth) for depth in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time, vocab)` after each of the tokens `(batch, time)`."""
        signal: Tensor = self.inputs(self.embedding(tokens)).transpose(1, 2)
        for layer in self.layers:
            assert isinstance(layer, nn.Conv1d)
            signal = signal + self.dropout(nn.functional.relu(convolve_causally(layer, signal)))
        logits: Tensor = self.head(signal.transpose(1, 2))
        return logits
