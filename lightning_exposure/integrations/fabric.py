"""`FabricSurroundings`: a training loop on Lightning Fabric as the surroundings of a measurement."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from lightning_exposure._lightning import needs_all_processes
from lightning_exposure.measuring import Update, training_clock
from lightning_exposure.measuring.surroundings import gather_objects

Value = TypeVar("Value")


class FabricSurroundings:
    """What a measurement asks of whatever trains the model, asked of a `Fabric`.

    Numbers go to the loggers of the `Fabric`, from its first process. Measure the model that was handed to
    `fabric.setup`, and not what it returned.

    Args:
        fabric: Of `lightning` or of `lightning_fabric`, launched.

    Example:
        >>> from lightning.fabric import Fabric
        >>> around = FabricSurroundings(Fabric(accelerator="cpu", devices=1))
        >>> around.rank, around.world_size, around.gather("what this process has")
        (0, 1, ['what this process has'])
    """

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric

    @property
    def rank(self) -> int:
        """The number of this process."""
        return int(self._fabric.global_rank)

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return int(self._fabric.world_size)

    @property
    def is_sharded(self) -> bool:
        """Whether a forward of the model needs all processes."""
        return needs_all_processes(self._fabric.strategy)

    def gather(self, value: Value) -> list[Value]:
        """The value of each process, in every process."""
        return gather_objects(value, self.world_size)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send numbers to the loggers."""
        if self._fabric.is_global_zero and self._fabric.loggers:
            self._fabric.log_dict(dict(metrics), step=step)

    def say(self, text: str) -> None:
        """Print once, where warnings are printed."""
        self._fabric.print(text, file=sys.stderr)

    @contextmanager
    def status(self, title: str) -> Iterator[Update]:
        """Nothing is shown: a loop of one's own has a progress bar of one's own."""
        yield lambda text: None

    def seconds(self) -> float:
        """Seconds of training in this process."""
        return training_clock()
