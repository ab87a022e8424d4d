"""All that this library uses of Lightning's private parts, each behind a name that says what it is for.

Lightning may change any of it without notice. A test per function, in `tests/test_lightning_private.py`, says by its
name what is gone. Everything works with `lightning` and with `pytorch_lightning`, and nothing is imported before it is
needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

TRAINER_LINKS: Final = ("_trainer", "_fabric")
"""Attributes by which a module, or a part of it, knows who trains it."""

MODEL_STATES: Final = ("state_dict", "current_model_state")
"""Where a checkpoint may hold weights: callbacks that average them put the last ones into the second place."""

AVERAGING_HOOKS: Final = {
    "WeightAveraging": ("on_validation_epoch_start", "on_validation_epoch_end", "on_train_end", "on_load_checkpoint"),
    "StochasticWeightAveraging": ("on_train_epoch_start", "on_train_end"),
}
"""Lightning's callbacks that average weights, and the hooks in which they put averages into the module."""

SHARDING_STRATEGIES: Final = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")
"""Lightning's and Fabric's strategies with which each process holds only a part of the model."""


def needs_all_processes(strategy: object) -> bool:
    """Whether a strategy of Lightning or Fabric shards the model, so that a forward needs all processes.

    >>> needs_all_processes(object())
    False
    """
    return any(base.__name__ in SHARDING_STRATEGIES for base in type(strategy).__mro__)


def unwrapped(model: Any) -> Any:
    """The model that was handed to `Fabric.setup` or to DistributedDataParallel, of what they returned.

    >>> unwrapped("any other")
    'any other'
    """
    while type(model).__name__ in ("_FabricModule", "DistributedDataParallel", "DataParallel"):
        model = model.module
    return model


# ---- data -----------------------------------------------------------------------------------------------------


def splits_data(trainer: Any) -> bool:
    """Whether a Trainer splits the training data among its processes: `Trainer(use_distributed_sampler=...)`.

    It has no public name once the Trainer is made.
    """
    return bool(trainer._accelerator_connector.use_distributed_sampler)


def batches_taken(trainer: Any) -> int:
    """How many batches of this epoch a Trainer has taken to train on; it may have fetched one more."""
    return int(trainer.fit_loop.batch_idx) + 1


def transferred(module: Any, batch: Any) -> Any:
    """A batch after the hooks that change it on its way to the device, of the module or its data module."""
    return module._apply_batch_transfer_handler(module._on_before_batch_transfer(batch))


# ---- the training step ----------------------------------------------------------------------------------------


def takes_batch_index(step: Any) -> bool:
    """Whether a `training_step` is given the number of the batch, too, as Lightning decides it."""
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

    return is_param_in_hook_signature(step, "batch_idx", min_args=2)


def set_trainer(module: Any, trainer: Any) -> list[Any]:
    """Give a module and those of its parts that have a Trainer another one, of whatever kind; returns these."""
    parts = [part for part in module.modules() if TRAINER_LINKS[0] in vars(part)]
    for part in parts:
        vars(part)[TRAINER_LINKS[0]] = trainer
    return parts


def silent_logger() -> Any:
    """A logger that takes everything and writes nothing."""
    from lightning.pytorch.loggers.logger import DummyLogger

    return DummyLogger()


def set_logged_hyperparameters(owner: Any, values: Mapping[str, Any]) -> None:
    """Let loggers get other hyperparameters of a module, or of a data module, than those it has and goes on with."""
    owner._hparams_initial = type(owner.hparams_initial)(values)


# ---- metrics --------------------------------------------------------------------------------------------------


def logged_in_training(trainer: Any) -> set[str]:
    """The names of all metrics that the training loop has logged so far, each as it can be monitored."""
    return set(_names(trainer.fit_loop.epoch_loop._results))


def logged_in_validation(trainer: Any) -> set[str]:
    """The names of all metrics that the validation loop has logged so far, each as it can be monitored."""
    return set(_names(trainer.fit_loop.epoch_loop.val_loop._results))


def _names(results: Any) -> Iterator[str]:
    for result in results.values():
        meta = result.meta
        forked = (meta.name, meta.forked_name(on_step=True), meta.forked_name(on_step=False))
        yield from forked
        if meta.dataloader_idx is not None:
            yield from (f"{name}/dataloader_idx_{meta.dataloader_idx}" for name in forked)


@contextmanager
def metrics_hidden(trainer: Any, names: set[str]) -> Iterator[None]:
    """Inside, a Trainer does not know some metrics: they are in none of its `*_metrics`.

    Args:
        trainer: Whose metrics they are.
        names: Which.
    """
    connector = trainer._logger_connector
    trainer._logger_connector = _Without(connector, names)
    try:
        yield
    finally:
        trainer._logger_connector = connector


class _Without:
    """What Lightning has of the metrics, without some of them."""

    def __init__(self, connector: Any, names: set[str]) -> None:
        self._connector, self._names = connector, names

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._connector, name)
        if name in ("callback_metrics", "logged_metrics", "progress_bar_metrics"):
            return {key: value[key] for key in value if key not in self._names}
        return value
