"""What a measurement needs to know of where it runs: a Lightning Trainer, another one, or a loop written by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from lightning_exposure.measuring._quiet import training_clock

Value = TypeVar("Value")

Update = Callable[[str], None]
"""Changes what is shown about how far something is."""


@dataclass(frozen=True)
class Moment:
    """A moment of a training run.

    Attributes:
        epoch: How many epochs are finished, the one that is just ending included.
        step: How many optimizer steps were taken.
        last: Whether it is known that no step follows.
    """

    epoch: int
    step: int
    last: bool = False


class Surroundings(Protocol):
    """All that a measurement asks of whatever trains the model.

    Every process of a run makes the same calls in the same order.
    """

    @property
    def rank(self) -> int:
        """The number of this process."""
        ...

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        ...

    @property
    def is_sharded(self) -> bool:
        """Whether a forward of the model needs all processes, because each of them holds only a part of it."""
        ...

    def gather(self, value: Value) -> list[Value]:
        """The value of each process, in the order of their ranks, in every process."""
        ...

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send numbers to whatever keeps them."""
        ...

    def say(self, text: str) -> None:
        """Tell people something, once however many processes there are."""
        ...

    def status(self, title: str) -> AbstractContextManager[Update]:
        """Show that something is running; what is yielded says how far it is."""
        ...

    def seconds(self) -> float:
        """Seconds of training so far, from any moment on; measurements are not counted."""
        ...


class Alone:
    """The surroundings of a hand-written training loop: one process.

    Args:
        log: Takes the numbers and the step; None: they are not kept.

    Example:
        >>> around = Alone(log=lambda metrics, step: print(step, dict(metrics)))
        >>> around.log({"exposure/max": 3.0}, 7)
        7 {'exposure/max': 3.0}
        >>> around.gather("what this process has")
        ['what this process has']
    """

    rank = 0
    world_size = 1
    is_sharded = False

    def __init__(self, log: Callable[[Mapping[str, float], int], None] | None = None) -> None:
        self._log = log

    def gather(self, value: Value) -> list[Value]:
        """There is one process."""
        return [value]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand the numbers over."""
        if self._log is not None:
            self._log(metrics, step)

    def say(self, text: str) -> None:
        """Print, where warnings are printed."""
        print(text, file=sys.stderr)

    @contextmanager
    def status(self, title: str) -> Iterator[Update]:
        """Nothing is shown."""
        yield lambda text: None

    def seconds(self) -> float:
        """The clock stands still inside of `quiet`."""
        return training_clock()


def gather_objects(value: Value, world_size: int) -> list[Value]:
    """The value of each process, in every process, wherever PyTorch's process group was started.

    >>> gather_objects("what this process has", 1)
    ['what this process has']
    """
    if world_size == 1:
        return [value]
    everything: list[Any] = [None] * world_size
    torch.distributed.all_gather_object(everything, value)
    return everything
