"""What follows the metrics of a private training run: a learning rate must not follow those of the training data.

A metric tells by itself where it was logged: Lightning keeps what the training loop logged apart from what the
validation loop logged. Its name tells nothing.
"""

from __future__ import annotations

from typing import Any

from lightning_exposure._lightning import logged_in_training, logged_in_validation
from lightning_exposure.callbacks._progress import say
from lightning_exposure.callbacks.private._metrics import COVERED
from lightning_exposure.callbacks.private.watching.seams import put
from lightning_exposure.errors import FitError


def followed_metrics(trainer: Any) -> set[str]:
    """The names of all metrics that the training loop has logged so far, but for those that no data are behind."""
    return logged_in_training(trainer) - {*COVERED}


class Monitors:
    """Watches over what monitors metrics, from `__init__` to `close`.

    Schedules that take a metric (`ReduceLROnPlateau`, or `"reduce_on_plateau": True`) step only along metrics that the
    validation loop logged, and the training loop did not. Callbacks that choose among weights by a metric of the
    training loop (`EarlyStopping`, `ModelCheckpoint`) are announced: all the weights they choose from are covered by
    epsilon, and which of them they chose is not.

    Args:
        trainer: Who trains.
        module: What is trained.
        verbose: Whether to announce.

    Attributes:
        close: Leaves the module as it was.
    """

    def __init__(self, trainer: Any, module: Any, *, verbose: bool) -> None:
        self._trainer, self._verbose = trainer, verbose
        self._announced: set[int] = set()
        original = module.lr_scheduler_step

        # Around the hook, and not around the schedule's step: what is set on a schedule is in every checkpoint.
        def lr_scheduler_step(scheduler: Any, metric: Any) -> None:
            for config in trainer.lr_scheduler_configs:
                if config.scheduler is scheduler and config.reduce_on_plateau:
                    self._refuse(config, proven=True)
            original(scheduler, metric)

        self.close = put(module, "lr_scheduler_step", lr_scheduler_step)

    def check(self) -> None:
        """Look at what the training loop has logged so far.

        Raises:
            FitError: A schedule follows it.
        """
        for config in self._trainer.lr_scheduler_configs:
            if config.reduce_on_plateau:
                self._refuse(config, proven=False)
        if self._verbose:
            self._announce()

    def _refuse(self, config: Any, *, proven: bool) -> None:
        """Refuse a schedule; if `proven`, also one whose metric was logged nowhere that is known."""
        name = config.monitor
        if name in COVERED:
            return
        where = "was logged by the training loop" if name in followed_metrics(self._trainer) else ""
        if not where and proven and name not in logged_in_validation(self._trainer):
            where = "was not logged by the validation loop"
        if where:
            raise FitError(
                f"{type(config.scheduler).__name__} monitors {name!r}, which {where}: the learning rate, and with it "
                "the weights, would follow the training data without noise. Monitor a metric that validation_step "
                "logs, under a name that the training loop does not use."
            )

    def _announce(self) -> None:
        chosen = [c for c in self._trainer.callbacks if id(c) not in self._announced and getattr(c, "monitor", None)]
        names = followed_metrics(self._trainer) if chosen else set()
        for callback in chosen:
            if callback.monitor in names:
                self._announced.add(id(callback))
                say(
                    self._trainer,
                    f"{type(callback).__name__} monitors {callback.monitor!r}, which the training loop logs: epsilon "
                    "covers all the weights it chooses from, but not which of them it chooses. Monitor a metric of "
                    "validation data.",
                )
