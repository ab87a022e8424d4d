"""Which defences against memorization are on in a training run, as far as its parts show it.

Of a Trainer of Lightning or of transformers; nothing here needs to know which. What only the one who prepared the data
can know, such as a text that was sanitized, adds itself to the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from lightning_exposure._torch import is_dropout
from lightning_exposure.report.record import RunRecord

_EARLY_STOPPING = ("EarlyStopping", "EarlyStoppingCallback")  # Lightning's, and that of transformers
_PRIVACY = ("epsilon", "delta", "noise_multiplier", "max_grad_norm")


def defences_of(run: Any) -> list[dict[str, Any]]:
    """Early stopping, weight decay, dropout and quantization, one entry for each that is on.

    Args:
        run: A Trainer of Lightning or of transformers.

    Returns:
        Entries of `RunRecord.defences`: a "name", and the settings.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning.pytorch.callbacks import EarlyStopping
        >>> defences_of(Trainer(callbacks=[EarlyStopping("val_loss", patience=2)], logger=False, accelerator="cpu"))
        [{'name': 'early stopping', 'monitor': 'val_loss', 'patience': 2, 'stopped': False}]
    """
    return [*_early_stopping(run), *_weight_decay(run), *_of_model(run)]


def add_defences(record: RunRecord, run: Any) -> None:
    """Put into a record what is on in a run, beside what has added itself."""
    if record.privacy is not None:
        settings = {name: record.privacy[name] for name in _PRIVACY if name in record.privacy}
        record.defences.append({"name": "differential privacy", **settings})
    named = {entry.get("name") for entry in record.defences}
    record.defences += [entry for entry in defences_of(run) if entry["name"] not in named]


def _early_stopping(run: Any) -> Iterator[dict[str, Any]]:
    handler = getattr(run, "callback_handler", None)  # transformers
    for callback in getattr(run if handler is None else handler, "callbacks", None) or ():
        if not any(base.__name__ in _EARLY_STOPPING for base in type(callback).__mro__):
            continue
        arguments = getattr(run, "args", None)
        patience = getattr(callback, "patience", getattr(callback, "early_stopping_patience", None))
        yield {
            "name": "early stopping",
            "monitor": getattr(callback, "monitor", getattr(arguments, "metric_for_best_model", None)),
            "patience": patience,
            "stopped": bool(getattr(callback, "stopped_epoch", 0)),
        }


def _weight_decay(run: Any) -> Iterator[dict[str, Any]]:
    optimizers = getattr(run, "optimizers", None) or [getattr(run, "optimizer", None)]
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", None) or ()]
    largest = max((float(group.get("weight_decay") or 0.0) for group in groups), default=0.0)
    if largest > 0.0:
        yield {"name": "weight decay", "weight_decay": largest}


def _of_model(run: Any) -> Iterator[dict[str, Any]]:
    model = getattr(run, "lightning_module", None)
    model = getattr(run, "model", None) if model is None else model
    if not isinstance(model, nn.Module):
        return
    largest = max((p for part in model.modules() for p in dropout_of(part)), default=0.0)
    if largest > 0.0:
        yield {"name": "dropout", "p": largest}
    for part in model.modules():
        done = getattr(part, "_quantization", None)
        if done is not None and done.holds_for(part):
            yield done.to_dict()


def dropout_of(part: nn.Module) -> list[float]:
    """The share of units that a single layer drops in training: of dropout, recurrent and attention layers.

    >>> dropout_of(nn.LSTM(2, 2, num_layers=2, dropout=0.1)), dropout_of(nn.Linear(2, 2))
    ([0.1], [])
    """
    if is_dropout(part):
        return [float(part.p)]
    if isinstance(part, nn.RNNBase) and part.num_layers > 1:
        return [float(part.dropout)]
    return [float(part.dropout)] if isinstance(part, nn.MultiheadAttention) else []
