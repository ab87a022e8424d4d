"""All that this library uses of Lightning's private parts, each behind a name that says what it is for.

Lightning may change any of it without notice. A test per function, in `tests/test_lightning_private.py`, says by its
name what is gone. Everything works with `lightning` and with `pytorch_lightning`, and nothing is imported before it is
needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
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


def given_loader(trainer: Any) -> Any:
    """The training loader that was given to `Trainer.fit`; None if there is none, or a data module gives it."""
    source = trainer.fit_loop._data_source
    return source.instance if source is not None and not source.is_module() else None


def batches_taken(trainer: Any) -> int:
    """How many batches of this epoch a Trainer has taken to train on; it may have fetched one more."""
    return int(trainer.fit_loop.batch_idx) + 1


def steps_made(trainer: Any) -> int:
    """How many batches a Trainer has stepped with, those before it was resumed included.

    If a module makes its steps itself, `global_step` counts those of all its optimizers.
    """
    if trainer.lightning_module.automatic_optimization:
        return int(trainer.global_step)
    return int(trainer.fit_loop.total_batch_idx) + 1


def received(trainer: Any, batch: Any) -> Any:
    """A batch as a Trainer makes it of what came out of the training loader, with all hooks, on its device."""
    module, strategy = trainer.lightning_module, trainer.strategy
    batch = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(batch), dataloader_idx=0)
    return strategy.batch_to_device(batch, dataloader_idx=0)


def transferred(module: Any, batch: Any) -> Any:
    """A batch after the hooks that change it on its way to the device, of the module or its data module."""
    return module._apply_batch_transfer_handler(module._on_before_batch_transfer(batch))


# ---- the training step ----------------------------------------------------------------------------------------


def takes_batch_index(step: Any) -> bool:
    """Whether a `training_step` is given the number of the batch, too, as Lightning decides it."""
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

    return is_param_in_hook_signature(step, "batch_idx", min_args=2)


def takes_iterator(step: Any) -> bool:
    """Whether a `training_step` fetches its batches by itself, as Lightning decides it."""
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

    return is_param_in_hook_signature(step, "dataloader_iter", explicit=True)


def train_on(trainer: Any, batch: Any, batch_idx: int) -> Any:
    """Run the training step and the backward pass on a batch, as a Trainer does; nothing is cleared and no step made.

    Args:
        trainer: That trains, with automatic optimization.
        batch: On its device.
        batch_idx: What the training step is told.

    Returns:
        The loss, detached; None if the training step gave none.
    """
    loop = trainer.fit_loop.epoch_loop
    arguments = loop._build_kwargs(OrderedDict(), batch, batch_idx)
    closure = loop.automatic_optimization._make_closure(arguments, trainer.optimizers[0], batch_idx)
    closure._zero_grad_fn = None
    return closure()


def set_outputs_loss(closure: Any, loss: Any) -> None:
    """Let `on_train_batch_end` be given another loss than that of the one pass that a closure has run."""
    if closure._result.loss is not None:
        closure._result.loss = loss


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


class StepMetrics:
    """What several passes through `training_step` log, made into one value for the step.

    What is logged with `on_epoch=True` adds up by itself, but for a loss that is a sum: to Lightning it is a mean.

    Args:
        trainer: That trains.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._results = trainer.fit_loop.epoch_loop._results
        self._found: dict[str, list[tuple[Any, int]]] = {}
        self._heard: list[dict[str, list[tuple[Any, int]]]] = []

    @contextmanager
    def another_pass(self, batch: Any) -> Iterator[None]:
        """A pass after the first is inside: on another batch, with nothing forgotten of those before."""
        connector, results = self._trainer._logger_connector, self._results
        first, size, batch_before = connector._first_loop_iter, results.batch_size, results.batch
        # In the first batch of an epoch, Lightning would clear what a hook has logged when another hook logs.
        connector._first_loop_iter, results.batch, results.batch_size = False, batch, None
        try:
            yield
        finally:
            connector._first_loop_iter, results.batch, results.batch_size = first, batch_before, size

    @contextmanager
    def counted(self, weight: int) -> Iterator[None]:
        """A pass is inside, of so many examples."""
        before = {key: result._forward_cache for key, result in self._results.items()}
        with self._hearing():
            yield
        for key, result in self._results.items():
            value = result._forward_cache
            if result.meta.on_step and value is not None and value is not before.get(key):
                self._found.setdefault(key, []).append((value, weight))

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Note each value that is logged inside, and the size of its batch."""
        results, heard = self._results, dict[str, list[tuple[Any, int]]]()
        update = results.update_metrics

        def update_metrics(key: str, value: Any, batch_size: int) -> None:
            heard.setdefault(key, []).append((value, batch_size))
            update(key, value, batch_size)

        results.update_metrics = update_metrics
        try:
            yield
        finally:
            del results.update_metrics
        self._heard.append(heard)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """What is logged inside goes nowhere; it is still brought together among processes."""
        loop = self._trainer.fit_loop.epoch_loop
        loop._results = type(self._results)(training=True)
        try:
            yield
        finally:
            loop._results = self._results

    def finish(self, summed: Sequence[Any] | None = None) -> None:
        """After the last pass: log the mean, the sum, the largest or the smallest value, as `reduce_fx` says.

        Args:
            summed: The losses of the passes, if that of the step is their sum: then what was logged of each is added
                up too, where `reduce_fx` says mean. None: it is their mean.
        """
        keys = {key for heard in self._heard for key in heard}
        losses = set() if summed is None else {key for key in keys if self._is_loss(key, summed)}
        for key, values in self._found.items():
            result = self._results[key]
            value = sum(value for value, _ in values) if key in losses else _reduced(values, result.meta)
            result._forward_cache = value
            if result.is_tensor and not result.meta.on_epoch:
                result.value = value
        for key in losses:
            self._add_up(key)

    def _is_loss(self, key: str, losses: Sequence[Any]) -> bool:
        """Whether a value is the loss: in each of the passes that have one."""
        result, logged = self._results[key], [heard.get(key, []) for heard in self._heard]
        if not result.is_tensor or not result.meta.is_mean_reduction:
            return False
        pairs = list(zip(logged, losses, strict=True))
        if any(len(values) != (loss is not None) for values, loss in pairs):
            return False
        return all(float(values[0][0]) == float(loss.to(values[0][0].dtype)) for values, loss in pairs if values)

    def _add_up(self, key: str) -> None:
        """Put the sum of all passes into the mean over an epoch, in the place of their mean."""
        result = self._results[key]
        if not result.meta.on_epoch:
            return
        values = [(value.to(result.value), size) for heard in self._heard for value, size in heard.get(key, [])]
        counted = sum(value * size for value, size in values)
        result.value = result.value - counted + sum(value for value, _ in values) * sum(size for _, size in values)
        result._computed = None


def _reduced(values: list[tuple[Any, int]], meta: Any) -> Any:
    """One value of several with their weights; the last one, if nobody knows how."""
    import torch

    last = values[-1][0]
    if not isinstance(last, torch.Tensor) or meta.is_custom_reduction:
        return last
    together, weights = torch.stack([value for value, _ in values]), torch.tensor([weight for _, weight in values])
    if meta.is_mean_reduction:
        weights = (weights if weights.sum() else weights + 1).to(together)
        return torch.tensordot(weights / weights.sum(), together, dims=1)
    return together.sum(0) if meta.is_sum_reduction else together.amax(0) if meta.is_max_reduction else together.amin(0)
