"""When something is measured: one meaning of `every_n_epochs` for every measurement, attack and audit."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_exposure._checks import whole_number


@dataclass(frozen=True)
class Schedule:
    """Every few epochs, perhaps every few steps, and always when training ends.

    Attributes:
        every_n_epochs: After every n-th epoch, and when training ends; 0: only when training ends.
        every_n_steps: After every n-th optimizer step, too; None: never.

    Raises:
        ArgumentError: One of them is out of range.

    Example:
        >>> [epoch for epoch in range(1, 6) if Schedule(2).after_epoch(epoch, last=epoch == 5)]
        [2, 4, 5]
        >>> [epoch for epoch in range(1, 6) if Schedule(0).after_epoch(epoch, last=epoch == 5)]
        [5]
    """

    every_n_epochs: int = 0
    every_n_steps: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that say nothing."""
        whole_number("every_n_epochs", self.every_n_epochs, at_least=0, remedy="0 is only when training ends.")
        if self.every_n_steps is not None:
            whole_number("every_n_steps", self.every_n_steps, at_least=1, remedy="None is never.")

    def after_epoch(self, epoch: int, *, last: bool) -> bool:
        """Whether it is due at the end of an epoch.

        Args:
            epoch: How many epochs are finished.
            last: Whether it is known that training ends with this one.
        """
        return last or (self.every_n_epochs > 0 and epoch % self.every_n_epochs == 0)

    def after_step(self, step: int, before: int) -> bool:
        """Whether it is due after a step.

        Args:
            step: How many steps were taken. Several optimizers take several at once.
            before: How many there were the last time.
        """
        return self.every_n_steps is not None and step // self.every_n_steps != before // self.every_n_steps


def is_last(
    *,
    epochs: int,
    max_epochs: int | None,
    steps: int,
    max_steps: int,
    epoch_ended: bool,
    stopping: bool = False,
) -> bool:
    """Whether a training run is known to end now.

    Args:
        epochs: How many epochs were finished, this one included.
        max_epochs: After how many training ends; None or -1: never.
        steps: How many steps were taken.
        max_steps: After how many training ends; -1: never.
        epoch_ended: Whether this is the end of an epoch.
        stopping: Whether the Trainer was asked to stop.

    Example:
        >>> [is_last(epochs=n, max_epochs=5, steps=9, max_steps=-1, epoch_ended=True) for n in (4, 5)]
        [False, True]
    """
    if stopping or 0 < max_steps <= steps:
        return True
    return epoch_ended and max_epochs is not None and 0 <= max_epochs <= epochs
