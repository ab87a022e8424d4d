"""`Regularization`: weight decay and dropout for any module, in one line; measured, they do not keep secrets."""

from __future__ import annotations

from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer

from lightning_exposure._checks import number
from lightning_exposure._torch import is_dropout
from lightning_exposure.errors import ArgumentError


class Regularization(Callback):
    """Switches weight decay and dropout on in any LightningModule while it trains.

    Early stopping is Lightning's own: `EarlyStopping("val_loss", patience=3)`. All of them stand in the record of the
    run, wherever they were switched on.

    Args:
        weight_decay: Of all groups of all optimizers; None: as they were made.
        dropout: The share of units that each dropout layer drops; None: as they were made. Recurrent layers of several
            layers and attention layers count as dropout layers.

    Raises:
        ArgumentError: An argument is out of range, or both are None.

    Example:
        >>> trainer = Trainer(callbacks=[Regularization(weight_decay=0.01)], logger=False, accelerator="cpu")
    """

    def __init__(self, *, weight_decay: float | None = None, dropout: float | None = None) -> None:
        if weight_decay is None and dropout is None:
            raise ArgumentError(
                "weight_decay and dropout are None; expected at least one of them. For example "
                "Regularization(weight_decay=0.01)."
            )
        if weight_decay is not None:
            number("weight_decay", weight_decay, at_least=0)
        if dropout is not None:
            number("dropout", dropout, at_least=0, below=1)
        self.weight_decay = weight_decay
        self.dropout = dropout

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set dropout before anything is trained; a module without any is refused."""
        if self.dropout is not None:
            set_dropout(pl_module, self.dropout)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the weight decay, also where a checkpoint has brought back another."""
        if self.weight_decay is not None:
            for optimizer in trainer.optimizers:
                set_weight_decay(optimizer, self.weight_decay)


def set_dropout(module: nn.Module, p: float) -> int:
    """Set the share of units that each dropout layer drops in training.

    Returns:
        How many layers there are.

    Raises:
        ArgumentError: There are none, or `p` is out of range.

    Example:
        >>> set_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), 0.2)
        1
    """
    number("p", p, at_least=0, below=1)
    found = 0
    for part in module.modules():
        if is_dropout(part):
            cast(Any, part).p = p
            found += 1
        elif isinstance(part, nn.MultiheadAttention) or (isinstance(part, nn.RNNBase) and part.num_layers > 1):
            part.dropout = p
            found += 1
    if not found:
        raise ArgumentError(
            f"dropout is {p:g}, and {type(module).__name__} has no dropout layer; expected at least one. Put "
            "nn.Dropout where it should drop."
        )
    return found


def set_weight_decay(optimizer: Optimizer, weight_decay: float) -> None:
    """Set the weight decay of all groups of an optimizer.

    Raises:
        ArgumentError: The optimizer has none, or the value is out of range.

    Example:
        >>> from torch.optim import SGD
        >>> optimizer = SGD([nn.Parameter()], lr=0.1)
        >>> set_weight_decay(optimizer, 0.01)
        >>> optimizer.param_groups[0]["weight_decay"]
        0.01
    """
    number("weight_decay", weight_decay, at_least=0)
    for group in optimizer.param_groups:
        if "weight_decay" not in group:
            raise ArgumentError(
                f"weight_decay is {weight_decay:g}, and {type(optimizer).__name__} has none; expected an optimizer "
                "with weight decay, such as AdamW or SGD."
            )
        group["weight_decay"] = weight_decay
