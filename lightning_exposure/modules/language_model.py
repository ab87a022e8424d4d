"""`LanguageModel`: the reference architectures as a LightningModule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import lightning.pytorch as pl
from torch import Tensor, nn

from lightning_exposure._checks import choice, refusal, whole_number
from lightning_exposure.data.packages import OnPytorchLightning, on_package, package_named, package_of
from lightning_exposure.errors import ArgumentError
from lightning_exposure.modules._optimizers import OptimizerName, SchedulerName, check_training
from lightning_exposure.modules._training import TrainsWithLoss
from lightning_exposure.modules.convolutional import ConvolutionalNetwork
from lightning_exposure.modules.recurrent import RecurrentNetwork
from lightning_exposure.modules.transformer import Positions, TransformerNetwork
from lightning_exposure.modules.wavenet import WaveNet

Architecture = Literal["lstm", "gru", "cnn", "wavenet", "transformer"]
"""Every architecture that can be asked for."""

_SHARED = ("hidden_size", "num_layers", "dropout")
# For each architecture: its network, and which of the arguments it takes besides the shared ones.
_NETWORKS: dict[Architecture, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "lstm": (RecurrentNetwork, ("embedding_size",)),
    "gru": (RecurrentNetwork, ("embedding_size",)),
    "cnn": (ConvolutionalNetwork, ("embedding_size", "kernel_size")),
    "wavenet": (WaveNet, ("embedding_size", "kernel_size")),
    "transformer": (TransformerNetwork, ("num_heads", "max_length", "positions")),
}
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "embedding_size",
    "num_heads",
    "max_length",
    "kernel_size",
    "warmup_steps",
    "step_size",
)
_BITS_PER_NAT = 1 / math.log(2)


class LanguageModelling(TrainsWithLoss):
    """What `LanguageModel` does, without a base class."""

    on_pytorch_lightning = OnPytorchLightning()

    def __init__(
        self,
        architecture: Architecture = "lstm",
        *,
        vocab_size: int,
        hidden_size: int = 200,
        num_layers: int = 2,
        embedding_size: int = 200,
        dropout: float = 0.0,
        num_heads: int = 4,
        max_length: int = 512,
        positions: Positions = "learned",
        kernel_size: int = 3,
        optimizer: OptimizerName = "rmsprop",
        lr: float = 0.001,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        scheduler: SchedulerName | None = None,
        warmup_steps: int = 100,
        step_size: int = 1,
        gamma: float = 0.5,
        early_stopping: int | None = None,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        _check_settings(settings)
        super().__init__()
        self.save_hyperparameters(settings)
        make, arguments = _NETWORKS[architecture]
        chosen = {name: settings[name] for name in (*_SHARED, *arguments)}
        if architecture in ("lstm", "gru"):
            chosen["cell"] = architecture
        self.network = make(vocab_size, **chosen)

    @classmethod
    def under(cls, package: str) -> type[LanguageModel]:
        """The same class for the Trainer of a package, "lightning" or "pytorch_lightning"."""
        module = package_named(package)
        if module is pl:
            return LanguageModel
        return on_package(LanguageModelling, "LightningModule", module, LanguageModel)

    def forward(self, tokens: Tensor, state: Any = None) -> Any:
        """Read tokens `(batch, time)`.

        Returns:
            For "lstm" and "gru" the logits `(batch, time, vocab)` and the state to go on from; for the others the
            logits alone.

        Raises:
            ArgumentError: A state was given to an architecture that has none.
        """
        if isinstance(self.network, RecurrentNetwork):
            return self.network(tokens, state)
        if state is not None:
            raise ArgumentError(
                f"state is a {type(state).__name__}; expected None, because architecture="
                f"{self.hparams['architecture']!r} has no state. Give it all the tokens again."
            )
        return self.network(tokens)

    def configure_callbacks(self) -> list[Any]:
        """Lightning's `EarlyStopping`, if it was asked for and the Trainer has none."""
        patience = self.hparams["early_stopping"]
        present = (callback for callback in getattr(self.trainer, "callbacks", ()))
        named = {base.__name__ for callback in present for base in type(callback).__mro__}
        if patience is None or "EarlyStopping" in named:
            return []
        package = package_of(self.trainer, "Trainer") or pl
        return [package.callbacks.EarlyStopping("val_loss", patience=patience, mode="min")]

    def _loss(self, batch: Any, stage: str) -> Tensor:
        inputs, targets = batch
        output = self(inputs)
        logits: Tensor = output[0] if isinstance(output, tuple) else output
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        values = {f"{stage}_loss": loss, f"{stage}_bpc": loss.detach() * _BITS_PER_NAT}
        together = stage != "train"
        self.log_dict(
            values, on_step=stage == "train", on_epoch=True, prog_bar=True, batch_size=len(inputs), sync_dist=together
        )
        return loss


class LanguageModel(LanguageModelling, pl.LightningModule):
    """A language model that predicts the next token: LSTM, GRU, CNN, WaveNet or Transformer.

    The defaults are the LSTM of "The Secret Sharer" (Carlini et al., 2019): two layers of 200 units, trained with
    RMSProp at a learning rate of 0.001. Batches are pairs `(inputs, targets)` of token ids `(batch, time)`, as from
    `TextDataModule`. Logged are `train_loss`, `val_loss` and `test_loss` in nats per token, and `train_bpc`,
    `val_bpc` and `test_bpc` in bits per token (per character, if tokens are characters).

    For a Trainer of `pytorch_lightning`, use the class `LanguageModel.under("pytorch_lightning")`.

    Args:
        architecture: "lstm", "gru", "cnn", "wavenet" or "transformer".
        vocab_size: How many tokens there are.
        hidden_size: Units or channels per layer.
        num_layers: How many layers.
        embedding_size: Size of a token's vector; a Transformer's is `hidden_size`.
        dropout: The fraction of units dropped in training.
        num_heads: For the Transformer: how many attention heads; they divide `hidden_size`.
        max_length: For the Transformer: the longest sequence it can read.
        positions: For the Transformer: "learned" or "sinusoidal".
        kernel_size: For CNN and WaveNet: how many steps a layer looks at.
        optimizer: "rmsprop", "adam", "adamw", "sgd", "adagrad", "adadelta", "nadam" or "radam".
        lr: The learning rate.
        weight_decay: The weight decay.
        momentum: For "sgd" and "rmsprop".
        scheduler: None for a constant learning rate; "cosine": down to 0 over the whole training run; "step": times
            `gamma` every `step_size` epochs; "linear-warmup": up over `warmup_steps` steps, then constant.
        warmup_steps: For "linear-warmup".
        step_size: For "step".
        gamma: For "step".
        early_stopping: Training ends when `val_loss` has not become smaller for this many validations in a row, unless
            the Trainer has an `EarlyStopping` of its own; None: it does not end early.

    Example:
        >>> import torch
        >>> model = LanguageModel("gru", vocab_size=50, hidden_size=8)
        >>> logits, state = model(torch.zeros(2, 3, dtype=torch.long))
        >>> logits.shape
        torch.Size([2, 3, 50])
        >>> LanguageModel("rnn", vocab_size=50)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: architecture is 'rnn'; expected one of 'lstm', 'gru', 'cnn', ...
    """


def _check_settings(settings: dict[str, Any]) -> None:
    """Refuse arguments that no model can be made with."""
    choice("architecture", settings["architecture"], _NETWORKS)
    choice("positions", settings["positions"], get_args(Positions))
    check_training(settings)
    if settings["early_stopping"] is not None:
        settings["early_stopping"] = whole_number("early_stopping", settings["early_stopping"], at_least=1)
    for name in _COUNTS:
        settings[name] = whole_number(name, settings[name], at_least=1)
    if settings["architecture"] == "transformer" and settings["hidden_size"] % settings["num_heads"]:
        raise refusal("num_heads", settings["num_heads"], f"a divisor of hidden_size={settings['hidden_size']}")
