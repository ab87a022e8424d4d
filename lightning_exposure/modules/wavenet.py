"""A language model in the manner of WaveNet: dilated causal convolutions with gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_exposure.modules.convolutional import convolve_causally


class GatedLayer(nn.Module):
    """A gated causal convolution: what goes on to the next layer, and what goes straight to the end.

    The last one has no next layer, so it has no weights for it either, and lets its signal through.

    Example:
        >>> onward, skip = GatedLayer(4, kernel_size=2, dilation=1, dropout=0.0)(torch.zeros(1, 4, 5))
        >>> onward.shape == skip.shape == (1, 4, 5)
        True
    """

    def __init__(self, channels: int, *, kernel_size: int, dilation: int, dropout: float, last: bool = False) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, 2 * channels, kernel_size, dilation=dilation)
        self.dropout = nn.Dropout(dropout)
        self.onward = None if last else nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, channels, 1)

    def forward(self, signal: Tensor) -> tuple[Tensor, Tensor]:
        """Filter and gate a signal `(batch, channels, time)`."""
        filtered, gate = convolve_causally(self.convolution, signal).chunk(2, dim=1)
        hidden = self.dropout(torch.tanh(filtered) * torch.sigmoid(gate))
        onward = signal if self.onward is None else signal + self.onward(hidden)
        return onward, self.skip(hidden)


class WaveNet(nn.Module):
    """Embedding, gated dilated causal convolutions whose outputs are summed, and two layers to the vocabulary.

    Args:
        vocab_size: How many tokens there are.
        hidden_size: Channels per layer.
        num_layers: How many layers.
        embedding_size: Size of a token's vector.
        kernel_size: How many steps a layer looks at.
        dilation_cycle: The dilation doubles with every layer, and begins again at 1 after this many.
        dropout: The fraction of channels dropped in each layer in training.

    Example:
        >>> WaveNet(9, hidden_size=4)(torch.zeros(2, 3, dtype=torch.long)).shape
        torch.Size([2, 3, 9])
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        hidden_size: int = 200,
        num_layers: int = 6,
        embedding_size: int = 200,
        kernel_size: int = 2,
        dilation_cycle: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_size)
        self.inputs = nn.Linear(embedding_size, hidden_size)
        self.layers = nn.ModuleList(
            GatedLayer(
                hidden_size,
                kernel_size=kernel_size,
                dilation=2 ** (depth % dilation_cycle),
                dropout=dropout,
                last=depth == num_layers - 1,
            )
            for depth in range(num_layers)
        )
        self.head = nn.Sequential(
            nn.ReLU(), nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, vocab_size)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits `(batch, time, vocab)` after each of the tokens `(batch, time)`."""
        signal: Tensor = self.inputs(self.embedding(tokens)).transpose(1, 2)
        total = torch.zeros_like(signal)
        for layer in self.layers:
            signal, skip = layer(signal)
            total = total + skip
        logits: Tensor = self.head(total.transpose(1, 2))
        return logits
