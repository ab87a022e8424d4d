"""Poisson sampling: every record is in a batch, or not, by a coin of its own.

The accountant's promise rests on it. Shuffled batches of a fixed size look alike but are something else, for which the
epsilon that is computed would not hold.
"""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from lightning_exposure.errors import DataError

_BITS = 128


class Generators(NamedTuple):
    """Where the randomness of some steps comes from.

    Attributes:
        sampling: Draws the batches.
        noise: Draws the noise.
    """

    sampling: torch.Generator
    noise: torch.Generator


class Draw(NamedTuple):
    """How a batch came about.

    Attributes:
        records: The numbers of its records among those that this process draws from; none if it is empty.
        state: Of the generator, right before the batch was drawn.
    """

    records: list[int]
    state: torch.Tensor


def generators(seed: int, *, rank: int = 0, steps: int = 0, device: torch.device | str = "cpu") -> Generators:
    """The generators of an epoch, made of a seed and of where a training run stands.

    A run that is resumed when so many steps were made gets those that an uninterrupted run has there, and never
    those of other steps.

    Args:
        seed: Of the run.
        rank: Which of several processes this is.
        steps: How many private steps were made before.
        device: Where the noise is needed.

    Example:
        >>> torch.rand(3, generator=generators(7, steps=5).noise).equal(torch.rand(3, generator=generators(7).noise))
        False
    """
    made = [torch.Generator(), torch.Generator(device)]
    for purpose, generator in enumerate(made):
        mixed = np.random.SeedSequence(seed, spawn_key=(rank, steps, purpose)).generate_state(1, np.uint64)
        generator.manual_seed(int(mixed[0]))
    return Generators(*made)


def fresh_seed() -> int:
    """A seed from the operating system, which nobody can guess."""
    return secrets.randbits(_BITS)


def draw(records: int, sample_rate: float, generator: torch.Generator) -> list[int]:
    """The numbers of the records in one batch; there may be none.

    >>> draw(5, 1.0, torch.Generator()), draw(5, 0.0, torch.Generator())
    ([0, 1, 2, 3, 4], [])
    """
    coins = torch.rand(records, generator=generator, dtype=torch.float64)
    return (coins < sample_rate).nonzero().flatten().tolist()


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

    It is no `torch.utils.data.DataLoader`, so that Lightning leaves it as it is. `DifferentialPrivacy` makes one of the
    loader of a data module or module by itself; loaders that are given to `Trainer.fit` have to be wrapped.

    Args:
        loader: The user's loader, which is left as it is. Its dataset has a length, and its batches are of a fixed
            size; their order does not matter.
        generator: Makes the generator for one pass; None: one with a seed from the operating system.
        rank: Which of several processes this is; None: as `torch.distributed` says.
        world_size: How many there are; None: as `torch.distributed` says.

    Attributes:
        dataset: The dataset.
        sizes: How many records the batches have that were handed out but not yet asked for here: the first is that of
            the oldest batch. 0 for one that stands in.
        draws: How the same batches came about.

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
        generator: Callable[[], torch.Generator] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        _check(loader)
        self.dataset: Any = loader.dataset
        self.sizes: deque[int] = deque()
        self.draws: deque[Draw] = deque()
        self._original: DataLoader[Any] = loader
        self._generator = generator
        self._rank, self._world_size = rank, world_size
        self._batches = _Batches(self)
        self._loader: DataLoader[Any] | None = None
        if len(self) == 0:
            raise DataError(
                f"train_dataloader has {self.records} records, which do not fill a batch of {loader.batch_size}; "
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
    def own_records(self) -> int:
        """How many of the records this process draws from."""
        return len(range(self.rank, self.records, self.world_size))

    @property
    def steps(self) -> int:
        """How many batches a pass has, in every process."""
        batches: Any = self._original.batch_sampler
        return steps_per_epoch(
            self.records, batches.batch_size, drop_last=batches.drop_last, world_size=self.world_size
        )

    @property
    def sample_rate(self) -> float:
        """With which probability a record is in a batch: 1 in the number of steps."""
        return 1 / self.steps

    @property
    def batch_size(self) -> int:
        """The batch size of the user's loader: what the sums of a process are divided by.

        A batch has that many records on average, or a little less where the last one of the original loader was not
        full. Not their true average, which tells how many records there are: that must not be read off the gradients.
        """
        batches: Any = self._original.batch_sampler
        return int(batches.batch_size)

    @property
    def collate_fn(self) -> Any:
        """What makes batches of records; None for a loader that has nothing to do so."""
        return getattr(self._original, "collate_fn", None)

    def bind(self, generator: Callable[[], torch.Generator]) -> None:
        """Say who makes the generator of every pass to come."""
        self._generator = generator

    def __len__(self) -> int:
        """How many batches a pass has."""
        return self.steps

    def __repr__(self) -> str:
        """Show what the accountant needs."""
        return f"PoissonLoader(records={self.records}, steps={self.steps}, sample_rate={self.sample_rate:.4g})"

    def __iter__(self) -> Iterator[Any]:
        """The batches of one pass. Nothing is drawn before the first is asked for: Lightning may ask twice."""
        generator = generators(fresh_seed()).sampling if self._generator is None else self._generator()
        if self._loader is None:
            self._loader = _resampled(self._original, _Recorded(self._batches))
        # Seeds the workers. A generator of its own, because otherwise the program's would be used.
        self._loader.generator.manual_seed(generator.initial_seed() ^ 1)
        drawn = self._batches.begin(generator)
        self.sizes, self.draws = deque(), deque()
        for batch in self._loader:
            self.sizes.append(drawn.popleft())
            self.draws.append(self._batches.noted.popleft())
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Nothing: every batch is drawn anew, so an epoch that was left in its middle goes on with any others."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called by the Trainer when it resumes in the middle of an epoch."""


class _Batches(Sampler[list[int]]):
    """Index batches by Poisson sampling, and how many records are in each."""

    def __init__(self, loader: PoissonLoader) -> None:
        self._loader = loader
        self._generator = torch.Generator()
        self._sizes: deque[int] = deque()
        self.noted: deque[Draw] = deque()

    def begin(self, generator: torch.Generator) -> deque[int]:
        """Begin a pass. Returns where the sizes of its batches will be, in order."""
        self._generator, self._sizes, self.noted = generator, deque(), deque()
        return self._sizes

    def note(self, batch: list[int], state: torch.Tensor) -> None:
        """Write down what was drawn last."""
        first, every = self._loader.rank, self._loader.world_size
        self.noted.append(Draw([(number - first) // every for number in batch] if self._sizes[-1] else [], state))

    @property
    def state(self) -> torch.Tensor:
        """That of the generator, now."""
        return self._generator.get_state()

    def __len__(self) -> int:
        return self._loader.steps

    def __iter__(self) -> Iterator[list[int]]:
        loader, generator, sizes = self._loader, self._generator, self._sizes
        mine = range(loader.rank, loader.records, loader.world_size)
        for _ in range(loader.steps):
            batch = [mine[number] for number in draw(len(mine), loader.sample_rate, generator)]
            sizes.append(len(batch))
            yield batch or [0]  # any record will do: what it gives is thrown away


class _Recorded(Sampler[list[int]]):
    """The same index batches, written down on their way to whoever reads the records."""

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
            yield batch


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


# ---- what cannot be sampled -----------------------------------------------------------------------------------


def _check(loader: Any) -> None:
    """Refuse a loader that Poisson sampling would turn into something else."""
    if isinstance(loader, PoissonLoader):
        raise DataError("train_dataloader is a PoissonLoader already; expected a torch DataLoader. Wrap it once only.")
    if not isinstance(loader, DataLoader):
        raise DataError(
            f"train_dataloader is a {type(loader).__name__}; expected one torch DataLoader, because every record must "
            "be in a batch with the same probability. Join several datasets with torch.utils.data.ConcatDataset."
        )
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise DataError(
            f"train_dataloader has the dataset {type(dataset).__name__}, which has no length or no index; expected a "
            "map-style dataset with __len__ and __getitem__, because records are drawn by their number. Read the "
            "stream into a list, or into files with an index."
        )
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler:
        raise DataError(
            f"train_dataloader has the batch_sampler {type(batches).__name__}; expected none of your own, because "
            "Poisson sampling puts batches together itself. Use DataLoader(dataset, batch_size=...)."
        )
    if not hasattr(loader, "resampled") and type(loader).__iter__ is not DataLoader.__iter__:
        raise DataError(
            f"train_dataloader is a {type(loader).__name__} with an __iter__ of its own, which could change what is in "
            "a batch; expected a torch.utils.data.DataLoader."
        )
    _check_sampler(batches.sampler, dataset)


def _check_sampler(sampler: Any, dataset: Any) -> None:
    while hasattr(sampler, "sampler"):
        sampler = sampler.sampler
    whole = isinstance(sampler, SequentialSampler | DistributedSampler)
    if isinstance(sampler, RandomSampler):
        whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    if not whole:
        raise DataError(
            f"train_dataloader has the sampler {type(sampler).__name__}, which does not take every record once; "
            "expected shuffle=True or shuffle=False, because Poisson sampling draws every record with the same "
            "probability. Choose records with torch.utils.data.Subset, and weigh them in the loss."
        )
