"""Whom epsilon protects: one record, or one user with all his records."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, get_args

from lightning.pytorch import Trainer

from lightning_exposure._checks import choice, refusal, whole_number
from lightning_exposure._lightning import given_loader
from lightning_exposure.callbacks._progress import Update, status
from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.poisson import PoissonLoader
from lightning_exposure.privacy.steps.proof import UsersOfProcess
from lightning_exposure.privacy.users.membership import UserOf, check_user, name_users

Unit = Literal["record", "user"]
UNITS: Final = get_args(Unit)
"""Whom epsilon can be about."""

_EVERY = 0.2
"""Seconds between two changes of what is shown."""


@dataclass(frozen=True)
class Protection:
    """What is added or removed in the promise: a record, or a user.

    Args:
        unit: "record" or "user".
        user: Names the user of a record, or all of them; only for users.
        max_records_per_user: How many records of one user may be in a batch; only for users.
        max_physical_batch_size: How many records are trained on at a time, at most.

    Raises:
        ArgumentError: A value is out of its range, or they contradict each other.
    """

    unit: Unit
    user: UserOf | None
    max_records_per_user: int | None
    max_physical_batch_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be; numbers of other libraries become Python's own."""
        choice("unit", self.unit, UNITS)
        most, physical = self.max_records_per_user, self.max_physical_batch_size
        if physical is not None:
            physical = whole_number("max_physical_batch_size", physical, at_least=1)
            object.__setattr__(self, "max_physical_batch_size", physical)
        if self.unit == "record":
            for name, value in (("user", self.user), ("max_records_per_user", most)):
                if value is not None:
                    raise refusal(name, value, "None with unit='record'", "To protect users, use unit='user'.")
            return
        check_user(self.user)
        if most is None:
            raise refusal(
                "max_records_per_user",
                most,
                "how many records of one user may be in a batch, with unit='user'",
                "Twice the median number of records of a user is a good start.",
            )
        most = whole_number("max_records_per_user", most, at_least=1)
        object.__setattr__(self, "max_records_per_user", most)
        if physical is not None and most > physical:
            raise refusal(
                "max_records_per_user",
                most,
                f"at most max_physical_batch_size, {physical}",
                "The records of a user are trained on together: use a larger max_physical_batch_size, or fewer.",
            )

    def protect(self, trainer: Trainer, loader: PoissonLoader) -> None:
        """Let a loader draw what is protected.

        Raises:
            DataError: The users cannot be named, or are too few for a batch.
        """
        if self.user is None or self.max_records_per_user is None:
            loader.protect(None)
            return
        with status(trainer, "users of the records") as update:
            users = name_users(
                loader.dataset,
                self.user,
                max_records_per_user=self.max_records_per_user,
                counted=partial(_shown, update, len(loader.dataset)),
            )
        loader.protect(users)

    def checked(self, loader: PoissonLoader) -> PoissonLoader:
        """A loader, if it draws what is protected.

        Raises:
            FitError: It draws something else.
        """
        if loader.unit != self.unit:
            raise FitError(
                f"unit is {self.unit!r}, and the training loader draws {loader.unit}s; expected the same. Something "
                "has replaced it after the setup: give the loader to the Trainer, or to a data module, before."
            )
        return loader

    def of_process(self, loader: PoissonLoader) -> UsersOfProcess | None:
        """The users that this process draws from; None if records are drawn."""
        return None if loader.users is None else UsersOfProcess(loader.users, loader.rank, loader.world_size)

    def protect_given(self, trainer: Trainer) -> None:
        """The same for a loader that was given to `Trainer.fit`, before the Trainer asks how long it is."""
        loader = given_loader(trainer)
        if isinstance(loader, PoissonLoader):
            self.protect(trainer, loader)


def _shown(update: Update, total: int, numbers: Iterable[int]) -> Iterator[int]:
    """Numbers that are counted on the screen."""
    last = time.monotonic()
    for number in numbers:
        if time.monotonic() - last > _EVERY:
            last = time.monotonic()
            update(f"{number:,} of {total:,}")
        yield number
