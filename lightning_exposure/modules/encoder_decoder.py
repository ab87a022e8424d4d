"""`EncoderDecoder`: a small translation model as a LightningModule."""

from __future__ import annotations

from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lightning_exposure._checks import refusal, whole_number
from lightning_exposure.data.packages import OnPytorchLightning, on_package, package_named
from lightning_exposure.modules._optimizers import OptimizerName, SchedulerName, check_training
from lightning_exposure.modules._training import TrainsWithLoss

_COUNTS = (
    "vocab_size",
    "target_vocab_size",
    "hidden_size",
    "num_layers",
    "embedding_size",
    "warmup_steps",
    "step_size",
)


class EncodedSource(NamedTuple):
    """What the encoder made of some sources.

    Attributes:
        outputs: A vector for each token of each source `(batch, time, hidden)`.
        padded: Where there is no token but padding `(batch, time)`.
        state: The state the decoder begins in, two tensors `(layers, batch, hidden)`.
    """

    outputs: Tensor
    padded: Tensor
    state: tuple[Tensor, Tensor]


class EncoderDecoderNetwork(nn.Module):
    """An LSTM that reads the source, and another that writes the target, with or without attention between them.

    Args:
        vocab_size: How many tokens the source language has.
        target_vocab_size: How many tokens the target language has.
        hidden_size: Units per layer.
        num_layers: How many layers, in either LSTM.
        embedding_size: Size of a token's vector.
        attention: Whether the decoder looks back at the source. Without it, it knows of the source only what the
            encoder's last state holds.
        dropout: The fraction of units dropped before, between and after the layers in training.
        padding_id: The token that fills up shorter sources.

    Example:
        >>> network = EncoderDecoderNetwork(9, 7, hidden_size=4)
        >>> encoded = network.encode(torch.tensor([[3, 4, 5], [6, 0, 0]]))
        >>> logits, state = network.decode(torch.tensor([[1, 2], [1, 3]]), encoded)
        >>> logits.shape
        torch.Size([2, 2, 7])
    """

    def __init__(
        self,
        vocab_size: int,
        target_vocab_size: int,
        *,
        hidden_size: int = 200,
        num_layers: int = 1,
        embedding_size: int = 200,
        attention: bool = True,
        dropout: float = 0.0,
        padding_id: int = 0,
    ) -> None:
        super().__init__()
        self.padding_id = padding_id
        # With one layer there is nothing between layers, and PyTorch warns about dropout there.
        between = dropout if num_layers > 1 else 0.0
        self.source_embedding = nn.Embedding(vocab_size, embedding_size)
        self.target_embedding = nn.Embedding(target_vocab_size, embedding_size)
        self.encoder = nn.LSTM(embedding_size, hidden_size, num_layers, batch_first=True, dropout=between)
        self.decoder = nn.LSTM(embedding_size, hidden_size, num_layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(dropout)
        self.align = nn.Linear(hidden_size, hidden_size, bias=False) if attention else None
        self.combine = nn.Linear(2 * hidden_size, hidden_size) if attention else None
        self.head = nn.Linear(hidden_size, target_vocab_size)

    def encode(self, source: Tensor) -> EncodedSource:
        """Read sources `(batch, time)`, the shorter ones filled up with padding at their end."""
        time = source.shape[1]
        places = torch.arange(1, time + 1, device=source.device)
        # Up to the last token that is no padding; an empty source counts as one token of padding.
        lengths = (places * (source != self.padding_id)).amax(dim=1).clamp(min=1)
        embedded = self.dropout(self.source_embedding(source))
        # Packed, so that the last state is that after the last token, and not after the padding.
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, state = self.encoder(packed)
        outputs, _ = pad_packed_sequence(hidden, batch_first=True, total_length=time)
        return EncodedSource(outputs, places > lengths[:, None], state)

    def decode(
        self, tokens: Tensor, encoded: EncodedSource, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Read tokens of the targets `(batch, time)`, going on from a state.

        Args:
            tokens: What comes next in each target; at its very beginning, the start token.
            encoded: What `encode` made of the sources, one for each target.
            state: What the last call returned; None: at the beginning of the targets.

        Returns:
            The logits `(batch, time, vocab)` of what follows each token, and the state to go on from.
        """
        before = tuple(part.contiguous() for part in (encoded.state if state is None else state))
        hidden, after = self.decoder(self.dropout(self.target_embedding(tokens)), before)
        if self.align is not None and self.combine is not None:
            scores = self.align(hidden) @ encoded.outputs.transpose(1, 2)
            weights = scores.masked_fill(encoded.padded[:, None], -torch.inf).softmax(dim=-1)
            hidden = torch.tanh(self.combine(torch.cat([weights @ encoded.outputs, hidden], dim=-1)))
        return self.head(self.dropout(hidden)), after


class Translating(TrainsWithLoss):
    """What `EncoderDecoder` does, without a base class."""

    on_pytorch_lightning = OnPytorchLightning()

    def __init__(
        self,
        *,
        vocab_size: int,
        target_vocab_size: int | None = None,
        hidden_size: int = 200,
        num_layers: int = 1,
        embedding_size: int = 200,
        attention: bool = True,
        dropout: float = 0.0,
        padding_id: int = 0,
        start_id: int = 1,
        optimizer: OptimizerName = "adam",
        lr: float = 0.001,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        scheduler: SchedulerName | None = None,
        warmup_steps: int = 100,
        step_size: int = 1,
        gamma: float = 0.5,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        if target_vocab_size is None:
            settings["target_vocab_size"] = vocab_size
        _check_settings(settings)
        super().__init__()
        self.save_hyperparameters(settings)
        shape = ("vocab_size", "target_vocab_size", "hidden_size", "num_layers", "embedding_size")
        more = ("attention", "dropout", "padding_id")
        self.network = EncoderDecoderNetwork(**{name: settings[name] for name in (*shape, *more)})

    @classmethod
    def under(cls, package: str) -> type[EncoderDecoder]:
        """The same class for the Trainer of a package, "lightning" or "pytorch_lightning"."""
        module = package_named(package)
        if module is pl:
            return EncoderDecoder
        return on_package(Translating, "LightningModule", module, EncoderDecoder)

    @property
    def start_id(self) -> int:
        """The token that every target begins with; it is no part of the targets in a batch."""
        return int(self.hparams["start_id"])

    def encode(self, source: Tensor) -> EncodedSource:
        """Read sources `(batch, time)`; see `EncoderDecoderNetwork.encode`."""
        return self.network.encode(source)

    def decode(self, tokens: Tensor, encoded: EncodedSource, state: Any = None) -> tuple[Tensor, Any]:
        """Read tokens of the targets `(batch, time)`; see `EncoderDecoderNetwork.decode`."""
        return self.network.decode(tokens, encoded, state)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The logits `(batch, time, vocab)` of each token of the targets, given the sources and what stands before."""
        start = torch.full_like(target[:, :1], self.start_id)
        logits, _ = self.decode(torch.cat([start, target[:, :-1]], dim=1), self.encode(source))
        return logits

    def _loss(self, batch: Any, stage: str) -> Tensor:
        """The loss of a batch `(source, target)` in nats per token of the targets, as the mean of its examples."""
        source, target = batch
        padding = self.hparams["padding_id"]
        logits = self(source, target)
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=padding, reduction="none")
        # Of each example first. A mean over all tokens of a batch would weigh every example by the lengths of the
        # others, and no clipping could make up for that in private training.
        lengths = (target != padding).sum(1).clamp(min=1)
        loss: Tensor = (losses.sum(1) / lengths).mean()
        evaluating = stage != "train"
        self.log(
            f"{stage}_loss", loss, on_step=not evaluating, on_epoch=True, prog_bar=True, batch_size=len(target),
            sync_dist=evaluating,
        )  # fmt: skip
        return loss


class EncoderDecoder(Translating, pl.LightningModule):
    """A translation model: an LSTM encoder and an LSTM decoder, with or without attention.

    Batches are pairs `(source, target)` of token ids `(batch, time)`, the shorter rows filled up with `padding_id` at
    their end. Padding is masked in the source and left out of the loss, so that it changes no score. The targets are
    as they are written, without `start_id`, which the module puts before them. Logged are `train_loss`, `val_loss` and
    `test_loss` in nats per token.

    To measure how exposed a secret in the targets is, see `lightning_exposure.adapters.encoder_decoder.adapter`.

    For a Trainer of `pytorch_lightning`, use the class `EncoderDecoder.under("pytorch_lightning")`.

    Args:
        vocab_size: How many tokens the source language has.
        target_vocab_size: How many tokens the target language has; None: as many.
        hidden_size: Units per layer.
        num_layers: How many layers, in either LSTM.
        embedding_size: Size of a token's vector.
        attention: Whether the decoder looks back at the source.
        dropout: The fraction of units dropped in training.
        padding_id: The token that fills up shorter rows.
        start_id: The token that the decoder reads first.
        optimizer: "rmsprop", "adam", "adamw", "sgd", "adagrad", "adadelta", "nadam" or "radam".
        lr: The learning rate.
        weight_decay: The weight decay.
        momentum: For "sgd" and "rmsprop".
        scheduler: None for a constant learning rate; "cosine", "step" or "linear-warmup" as for `LanguageModel`.
        warmup_steps: For "linear-warmup".
        step_size: For "step".
        gamma: For "step".

    Example:
        >>> model = EncoderDecoder(vocab_size=9, target_vocab_size=7, hidden_size=4)
        >>> model(torch.tensor([[3, 4, 5]]), torch.tensor([[2, 3]])).shape
        torch.Size([1, 2, 7])
        >>> EncoderDecoder(vocab_size=9, start_id=9)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: start_id is 9; expected a token id below target_vocab_size=9.
    """


def _check_settings(settings: dict[str, Any]) -> None:
    """Refuse arguments that no model can be made with."""
    check_training(settings)
    for name in _COUNTS:
        settings[name] = whole_number(name, settings[name], at_least=1)
    for name, limits in {
        "padding_id": ("vocab_size", "target_vocab_size"),
        "start_id": ("target_vocab_size",),
    }.items():
        settings[name] = whole_number(name, settings[name], at_least=0)
        for limit in limits:
            if settings[name] >= settings[limit]:
                raise refusal(name, settings[name], f"a token id below {limit}={settings[limit]}")
