"""`run_record`: what everything that takes part in a training run knows of it, as one `RunRecord`.

Whatever has something to say has a method `add_to_record`; nothing here needs to know which callbacks there are, nor
whose Trainer it is.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn

from lightning_exposure import __version__
from lightning_exposure._checks import refusal
from lightning_exposure._lightning import needs_all_processes
from lightning_exposure._torch import is_dropout
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.weights import weights_sha256
from lightning_exposure.secrets import CanarySet

_EARLY_STOPPING = ("EarlyStopping", "EarlyStoppingCallback")  # Lightning's, and that of transformers
_LIBRARIES = ("torch", "lightning", "pytorch-lightning", "transformers", "opacus")


@runtime_checkable
class Contributor(Protocol):
    """Whatever has something to say in the record of a run: a callback, a data module, a loop.

    Example:
        >>> class Quantized:
        ...     def add_to_record(self, record):
        ...         record.defences.append({"name": "quantize", "bits": 8})
        >>> isinstance(Quantized(), Contributor)
        True
    """

    def add_to_record(self, record: RunRecord) -> None:
        """Fill in what it knows.

        Called in every process of a run, in the same order. What a process cannot know alone may be gathered, unless
        `record.interrupted`: then the others may be gone.

        Args:
            record: That others have filled in, too. Results about canaries belong where `record.place_for` says.
        """
        ...


def run_record(run: Any, *, interrupted: str | None = None, settings: dict[str, Any] | None = None) -> RunRecord:
    """The record of a training run, from whatever takes part in it.

    With several processes, call it in each of them.

    Args:
        run: A Trainer of Lightning or of transformers; or anything with a method `add_to_record`.
        interrupted: The kind of error that ends the training, if one does; None: ask the Trainer.
        settings: Anything else worth remembering.

    Raises:
        ArgumentError: Nothing in it has anything to say.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_exposure import CanarySet, ExposureCallback, SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4], seed=0)
        >>> trainer = Trainer(callbacks=[ExposureCallback(canaries)], logger=False, enable_checkpointing=False)
        >>> run_record(trainer).verdict
        'Nothing is known: no exposure was measured, and no attack was made'
    """
    parts = contributors_of(run)
    if not parts:
        raise refusal(
            "run",
            run,
            "a Trainer with at least one callback of lightning_exposure",
            "Give it an ExposureCallback: without one there is nothing to report.",
        )
    if interrupted is None and getattr(run, "interrupted", False):
        interrupted = "an error or a signal"
    record = RunRecord(CanarySet([]), dict(settings or {}), interrupted=interrupted)
    record.date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record.model = _model(run)
    record.data = _data(run)
    for part in parts:
        part.add_to_record(record)
    named = {entry.get("name") for entry in record.defences}
    record.defences += [entry for entry in defences_in_force(run) if entry["name"] not in named]
    steps = _steps(run)
    for each in (record, *record.others.values()):
        each.steps = steps if each.steps is None else each.steps
    record.settings = {**record.settings, "versions": versions()}
    return record


def contributors_of(run: Any) -> list[Contributor]:
    """The parts of a run that have something to say: itself, or its callbacks and its data module, in their order."""
    return [part for part in _parts(run) if callable(getattr(type(part), "add_to_record", None))]


def is_first_process(run: Any) -> bool:
    """Whether this process is the one that writes files."""
    asked = getattr(run, "is_global_zero", None)  # Lightning
    if asked is None:
        asked = getattr(run, "is_world_process_zero", True)  # transformers
    return bool(asked() if callable(asked) else asked)


def versions() -> dict[str, str]:
    """Of Python, of this library, and of those that it stands on, where they are installed."""
    found = {"python": platform.python_version(), "lightning-exposure": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _parts(run: Any) -> Iterator[Any]:
    yield run
    handler = getattr(run, "callback_handler", None)  # transformers
    yield from getattr(run if handler is None else handler, "callbacks", None) or ()
    yield getattr(run, "datamodule", None)


def _steps(run: Any) -> int | None:
    steps = getattr(getattr(run, "state", None), "global_step", None)  # transformers
    steps = getattr(run, "global_step", None) if steps is None else steps
    return int(steps) if isinstance(steps, int) else None


def _model(run: Any) -> dict[str, Any] | None:
    """The class of the model, its size, and the hash of its weights, where this process has all of them."""
    model = getattr(run, "lightning_module", None)
    model = getattr(run, "model", None) if model is None else model
    if not isinstance(model, nn.Module):
        return None
    found: dict[str, Any] = {
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sha256": None,
    }
    if is_first_process(run) and not _is_sharded(run):
        found["sha256"] = weights_sha256(model)
    return found


def _is_sharded(run: Any) -> bool:
    """Whether each process holds only a part of the weights."""
    if needs_all_processes(getattr(run, "strategy", None)):
        return True
    return any(getattr(run, name, False) for name in ("is_fsdp_enabled", "is_deepspeed_enabled"))  # transformers


def _data(run: Any) -> dict[str, Any] | None:
    """What kind of data there was, and how many records, where a loader tells."""
    module = getattr(run, "datamodule", None)
    dataset = getattr(run, "train_dataset", None)  # transformers
    loader = None
    if dataset is None:
        loader = getattr(run, "train_dataloader", None)
        dataset = getattr(loader, "dataset", None)
    kind = dataset if module is None else module
    if kind is None:
        return None
    try:
        records = len(dataset)  # type: ignore[arg-type]
    except Exception:  # a stream; or a dataset that is read on demand, and cannot be read any more
        records = None
    return {"class": type(kind).__name__, "records": records}


# ---- defences ---------------------------------------------------------------------------------------------------


def defences_in_force(run: Any) -> list[dict[str, Any]]:
    """Early stopping, weight decay, dropout and quantization, one entry for each that is on in a run.

    What only the one who prepared the data can know, such as a text that was sanitized, adds itself to the record.

    Args:
        run: A Trainer of Lightning or of transformers.

    Returns:
        Entries of `RunRecord.defences`: a "name", and the settings.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning.pytorch.callbacks import EarlyStopping
        >>> stopping = EarlyStopping("val_loss", patience=2)
        >>> defences_in_force(Trainer(callbacks=[stopping], logger=False, accelerator="cpu"))
        [{'name': 'early stopping', 'monitor': 'val_loss', 'patience': 2, 'stopped': False}]
    """
    return [*_early_stopping(run), *_weight_decay(run), *_of_model(run)]


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
        return [float(cast(Any, part).p)]
    if isinstance(part, nn.RNNBase) and part.num_layers > 1:
        return [float(part.dropout)]
    return [float(part.dropout)] if isinstance(part, nn.MultiheadAttention) else []
