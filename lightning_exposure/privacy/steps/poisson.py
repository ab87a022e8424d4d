"""Poisson sampling: every record is in a batch, or not, by a coin of its own; or every user, with his records.

The accountant's promise rests on it. Shuffled batches of a fixed size look alike but are something else, for which the
epsilon that is computed would not hold.
"""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from lightning_exposure.errors import DataError
from lightning_exposure.privacy.steps._refused_loaders import check_loader
from lightning_exposure.privacy.steps.parts import Rest, part_sizes, parts_of
from lightning_exposure.privacy.steps.secure import AnyGenerator, SecureGenerator, coins
from lightning_exposure.privacy.users.grouping import Grouped
from lightning_exposure.privacy.users.membership import Users

_BITS = 128


class Generators(NamedTuple):
    """Where the randomness of some steps comes from.

    Attributes:
        sampling: Draws the batches.
        noise: Draws the noise.
    """

    sampling: AnyGenerator
    noise: AnyGenerator


class Draw(NamedTuple):
    """How a batch came about.

    Attributes:
        records: The numbers of its records among those that this process draws from; none if it is empty. Of its
            users, if users are drawn.
        state: Of the generator, right before the batch was drawn.
        members: The records of each user that are in it, by their numbers in the dataset; None if records are drawn.
    """

    records: list[int]
    state: torch.Tensor
    members: list[list[int]] | None = None


def generators(seed: int | None, *, rank: int = 0, steps: int = 0, device: torch.device | str = "cpu") -> Generators:
    """The generators of an epoch, made of a seed and of where a training run stands.

    A run that is resumed when so many steps were made gets those that an uninterrupted run has there, and never
    those of other steps.

    Args:
        seed: Of the run; None: they draw from the operating system, and nothing of them can be told or repeated.
        rank: Which of several processes this is.
        steps: How many private steps were made before.
        device: Where the noise is needed.

    Example:
        >>> torch.rand(3, generator=generators(7, steps=5).noise).equal(torch.rand(3, generator=generators(7).noise))
        False
    """
    if seed is None:
        return Generators(SecureGenerator(), SecureGenerator())
    made = [torch.Generator(), torch.Generator(device)]
    for purpose, generator in enumerate(made):
        mixed = np.random.SeedSequence(seed, spawn_key=(rank, steps, purpose)).generate_state(1, np.uint64)
        generator.manual_seed(int(mixed[0]))
    return Generators(*made)


def fresh_seed() -> int:
    """A seed from the operating system, which nobody can guess."""
    return secrets.randbits(_BITS)


def draw(records: int, sample_rate: float, generator: AnyGenerator) -> list[int]:
    """The numbers of the records, or of the users, in one batch; there may be none.

    >>> draw(5, 1.0, torch.Generator()), draw(5, 0.0, torch.Generator())
    ([0, 1, 2, 3, 4], [])
    """
    return (coins(records, generator) < sample_rate).nonzero().flatten().tolist()


def steps_per_epoch(records: int, batch_size: int, *, drop_last: bool = False, world_size: int = 1) -> int:
    """How many batches of a size each of several processes makes of some records.

    >>> steps_per_epoch(10, 4), steps_per_epoch(10, 4, drop_last=True), steps_per_epoch(10, 4, world_size=2)
    (3, 2, 2)
    """
    mine = -(-records // world_size)
    return mine // batch_size if drop_last else -(-mine // batch_size)


class PoissonLoader:
    """A data loader whose batches are drawn by Poisson sampling, made from the user's own loader.

    It has the same dataset, collate function, workers and other settings, and makes as many steps per epoch. Only the
    batches differ: each of them has every record with probability `sample_rate`, independently of all the others.
    So their sizes vary around that of the original loader. A draw without any record gives a batch with one record
    that stands in for it, so that no model has to cope with an empty batch; `sizes` tells that it counts as nothing.

    With several processes each draws from its own part of the records, and all make equally many steps.

    If there are `users`, they are drawn in the place of records: the batch size of the original loader is how many
    users a batch has on average, and each of them is in it with all his records, or with `max_records_per_user` of them
    that are drawn anew each time. A user is never split over batches, and all his records are with one process.

    It is no `torch.utils.data.DataLoader`, so that Lightning leaves it as it is. `DifferentialPrivacy` makes one of the
    loader of a data module or module by itself; loaders that are given to `Trainer.fit` have to be wrapped.

    Args:
        loader: The user's loader, which is left as it is. Its dataset has a length, and its batches are of a fixed
            size; their order does not matter.
        generator: Makes the generator for one pass; None: one with a seed from the operating system.
        rank: Which of several processes this is; None: as `torch.distributed` says.
        world_size: How many there are; None: as `torch.distributed` says.
        users: Whose the records are, if users are to be drawn (see `name_users`).

    Attributes:
        dataset: The dataset.
        users: Whose the records are; None: records are drawn.
        sizes: How many records the batches have that were handed out but not yet asked for here: the first is that of
            the oldest batch. 0 for one that stands in.
        draws: How the same batches came about.
        rests: What of the same batches is still to be read, if they are handed out in parts (see `divide`).

    Example:
        >>> loader = PoissonLoader(DataLoader(range(100), batch_size=10, shuffle=True))
        >>> len(loader), loader.sample_rate, loader.batch_size
        (10, 0.1, 10)
        >>> sum(1 for batch in loader)
        10
    """

    def __init__(
        self,
        loader: Any,
        *,
        generator: Callable[[], AnyGenerator] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        users: Users | None = None,
    ) -> None:
        if isinstance(loader, PoissonLoader):
            raise DataError(
                "train_dataloader is a PoissonLoader already; expected a torch DataLoader. Wrap it once only."
            )
        check_loader(loader)
        self.dataset: Any = loader.dataset
        self.users: Users | None = None
        self.sizes: deque[int] = deque()
        self.draws: deque[Draw] = deque()
        self.rests: deque[Rest] = deque()
        self._most: int | None = None
        self._original: DataLoader[Any] = loader
        self._generator = generator
        self._rank, self._world_size = rank, world_size
        self._batches = _Batches(self)
        self._loader: DataLoader[Any] | None = None
        self.protect(users)

    def protect(self, users: Users | None) -> None:
        """Draw users in the place of records, or records again, from the next pass on.

        Args:
            users: Whose the records are; None: records are drawn.

        Raises:
            DataError: There are not enough of them for a batch.
        """
        self.users = users
        if len(self) == 0:
            raise DataError(
                f"train_dataloader has {self.units} {self.unit}s, which do not fill a batch of {self.batch_size}; "
                "expected at least one batch. Use drop_last=False or smaller batches."
            )

    @property
    def rank(self) -> int:
        """Which of several processes this is."""
        return _place()[0] if self._rank is None else self._rank

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return _place()[1] if self._world_size is None else self._world_size

    @property
    def records(self) -> int:
        """How many records there are, for all processes together."""
        return len(self.dataset)

    @property
    def unit(self) -> str:
        """What is drawn: "record" or "user"."""
        return "record" if self.users is None else "user"

    @property
    def units(self) -> int:
        """How many records there are, or users, for all processes together."""
        return self.records if self.users is None else self.users.count

    @property
    def own_units(self) -> int:
        """How many of them this process draws from."""
        return len(range(self.rank, self.units, self.world_size))

    @property
    def steps(self) -> int:
        """How many batches a pass has, in every process."""
        batches: Any = self._original.batch_sampler
        return steps_per_epoch(self.units, batches.batch_size, drop_last=batches.drop_last, world_size=self.world_size)

    @property
    def sample_rate(self) -> float:
        """With which probability a record, or a user, is in a batch: 1 in the number of steps."""
        return 1 / self.steps

    @property
    def batch_size(self) -> int:
        """The batch size of the user's loader: what the sums of a process are divided by.

        A batch has that many records (or users) on average, or a little less where the last one of the original loader
        was not full. Not their true average, which tells how many there are: that must not be read off the gradients.
        """
        batches: Any = self._original.batch_sampler
        return int(batches.batch_size)

    @property
    def collate_fn(self) -> Any:
        """What makes batches of records; None for a loader that has nothing to do so."""
        return getattr(self._original, "collate_fn", None)

    def bind(self, generator: Callable[[], AnyGenerator]) -> None:
        """Say who makes the generator of every pass to come."""
        self._generator = generator

    def divide(self, most: int | None) -> None:
        """Hand out only the first part of every batch from the next pass on, and leave the others in `rests`.

        Args:
            most: How many records a part has at most; None: batches are handed out as a whole.
        """
        self._most = most

    def __len__(self) -> int:
        """How many batches a pass has."""
        return self.steps

    def __repr__(self) -> str:
        """Show what the accountant needs."""
        users = "" if self.users is None else f"users={self.users.count}, "
        return f"PoissonLoader({users}records={self.records}, steps={self.steps}, sample_rate={self.sample_rate:.4g})"

    def __iter__(self) -> Iterator[Any]:
        """The batches of one pass. Nothing is drawn before the first is asked for: Lightning may ask twice."""
        generator = generators(fresh_seed()).sampling if self._generator is None else self._generator()
        if self._loader is None:
            self._loader = _resampled(self._original, _Recorded(self._batches))
        # Seeds the workers. A generator of its own, because otherwise the program's would be used.
        self._loader.generator.manual_seed(generator.initial_seed() ^ 1)
        most = self._most
        drawn = self._batches.begin(generator, most)
        self.sizes, self.draws, self.rests = deque(), deque(), deque()
        parts = iter(self._loader)
        for first in parts:
            size = drawn.popleft()
            rest = Rest(parts, part_sizes(size, most))
            self.sizes.append(size)
            self.draws.append(self._batches.noted.popleft())
            self.rests.append(rest)
            yield first
            rest.fetch()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: every batch is drawn anew, so an epoch that was left in its middle goes on with any others."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called by the Trainer when it resumes in the middle of an epoch."""


class _Batches(Sampler[list[int]]):
    """Index batches by Poisson sampling, and how many records are in each."""

    def __init__(self, loader: PoissonLoader) -> None:
        self._loader = loader
        self._generator: AnyGenerator = torch.Generator()
        self._sizes: deque[int] = deque()
        self.noted: deque[Draw] = deque()
        self.most: int | None = None

    def begin(self, generator: AnyGenerator, most: int | None) -> deque[int]:
        """Begin a pass, with parts of a size. Returns where the sizes of its batches will be, in order."""
        self._generator, self._sizes, self.noted, self.most = generator, deque(), deque(), most
        return self._sizes

    def note(self, batch: list[int], state: torch.Tensor) -> None:
        """Write down what was drawn last: as it is in the batch, and not as it was meant to be."""
        first, every, users = self._loader.rank, self._loader.world_size, self._loader.users
        drawn, members = batch if self._sizes[-1] else [], None
        if users is not None:
            runs = [(user, list(run)) for user, run in groupby(drawn, key=users.of_record.item)]
            drawn, members = [user for user, _ in runs], [run for _, run in runs]
        self.noted.append(Draw([(number - first) // every for number in drawn], state, members))

    def parts(self, batch: list[int]) -> Iterator[list[int]]:
        """The batch that was drawn last, part by part; one record that stands in, if there is none."""
        return parts_of(batch, part_sizes(self._sizes[-1] or len(batch), self.most))

    @property
    def state(self) -> torch.Tensor:
        """That of the generator, now."""
        return self._generator.get_state()

    def __len__(self) -> int:
        return self._loader.steps

    def __iter__(self) -> Iterator[list[int]]:
        loader, generator, sizes = self._loader, self._generator, self._sizes
        mine, users = range(loader.rank, loader.units, loader.world_size), loader.users
        for _ in range(loader.steps):
            batch = [mine[number] for number in draw(len(mine), loader.sample_rate, generator)]
            size = len(batch)
            if users is not None:
                members = [users.some_of(user, generator) for user in batch]
                batch, size = [record for records in members for record in records], Grouped([*map(len, members)])
            sizes.append(size)
            yield batch or [0]  # any record will do: what it gives is thrown away


class _Recorded(Sampler[list[int]]):
    """The same index batches, part by part, written down on their way to whoever reads the records."""

    def __init__(self, batches: _Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        batches = iter(self._batches)
        while True:
            state = self._batches.state
            batch = next(batches, None)
            if batch is None:
                return
            self._batches.note(batch, state)
            yield from self._batches.parts(batch)


def _resampled(loader: Any, batches: Sampler[list[int]]) -> DataLoader[Any]:
    """A copy of a loader that takes its batches from elsewhere."""
    if hasattr(loader, "resampled"):
        made: DataLoader[Any] = loader.resampled(batches)  # it knows better how: it counts what it hands out
    else:
        made = copy.copy(loader)
        # A loader refuses to change these once it is made, but a copy may be finished like a new one.
        vars(made).update(batch_sampler=batches, sampler=SequentialSampler(loader.dataset), _iterator=None)
    made.generator = torch.Generator()
    if hasattr(made, "in_order"):
        made.in_order = True  # or the sizes would not belong to the batches
    return made


def _place() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
