"""The user's sampler or batch sampler, with the indices of the canaries woven in."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from lightning_exposure.data._datasets import CanaryDataset
from lightning_exposure.data._weaving import REPEAT, random_for, share, weave, weave_unknown
from lightning_exposure.errors import DataError
from lightning_exposure.privacy.steps.parts import Continued


@dataclass
class Course:
    """Where a loader stands: what a checkpoint has to hold so that an epoch can be continued in its middle.

    Attributes:
        seed: Where the places of the canaries come from, together with the epoch.
        rank: Which process this is.
        world_size: How many train together.
        epoch: The epoch of the current pass, or of the next one if `announced`.
        announced: Whether the epoch is set for a pass that has not begun.
        skip: How many batches of the next pass were trained on before a checkpoint was written.
        randomness: The random state that the user's sampler began the current pass with.
        replay: The random state with which it has to begin the next pass.
    """

    seed: int
    rank: int
    world_size: int
    epoch: int = 0
    announced: bool = True
    skip: int = 0
    randomness: dict[str, torch.Tensor] = field(default_factory=dict)
    replay: dict[str, torch.Tensor] | None = None

    def announce(self, epoch: int) -> None:
        """Say which epoch the next pass is; without this, it is the one after the last."""
        self.epoch, self.announced = epoch, True

    def begin(self) -> int:
        """Begin a pass. Returns how many of its batches are behind us."""
        if not self.announced:
            self.epoch += 1
        self.announced = False
        skip, self.skip = self.skip, 0
        return skip

    def read(self, sampler: Iterable[Any]) -> Iterator[Any]:
        """The user's indices; in an epoch that is continued, the same as before."""
        generator = getattr(sampler, "generator", None)
        replay, self.replay = self.replay, None
        if replay is None:
            self.randomness = {"global": torch.get_rng_state()}
            if isinstance(generator, torch.Generator):
                self.randomness["sampler"] = generator.get_state()
            return iter(sampler)
        self.randomness = replay
        if isinstance(generator, torch.Generator) and "sampler" in replay:
            generator.set_state(replay["sampler"])
        # The program's own random numbers go on as if nothing had been drawn here.
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(replay["global"])
            return iter(list(sampler))


class Sharded(Sampler[Any]):
    """Every `world_size`-th entry of a sampler; the first entries are repeated until all processes have as many."""

    def __init__(self, sampler: Any, course: Course) -> None:
        """Take this process's part of a sampler that gives the same entries in every process."""
        self.sampler = sampler
        self.generator = getattr(sampler, "generator", None)
        self._course = course

    def __len__(self) -> int:
        """How many entries each process gets."""
        return -(-len(self.sampler) // self._course.world_size)

    def __iter__(self) -> Iterator[Any]:
        """The entries of this process."""
        entries = list(self.sampler)
        entries += [entries[place % len(entries)] for place in range(-len(entries) % self._course.world_size)]
        return iter(entries[self._course.rank :: self._course.world_size])


def sharded(sampler: Any, dataset: Any, course: Course, *, shuffle: bool) -> Any:
    """What Lightning would put in the place of a sampler if several processes train together."""
    if isinstance(sampler, RandomSampler | SequentialSampler):
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        return DistributedSampler(dataset, course.world_size, course.rank, shuffle=shuffle, seed=seed)
    return Sharded(sampler, course)


class WovenSampler(DistributedSampler[Any]):
    """The user's indices in their order, with the indices of the canaries at random places.

    It calls itself a `DistributedSampler`, and is one: every process gets its own part of the canaries. That keeps
    Lightning from putting another one in its place, which would repeat canaries to make the parts equal.
    """

    def __init__(self, sampler: Any, dataset: CanaryDataset, course: Course, *, batch_size: int) -> None:
        """Weave into a sampler; see `weave` for `batch_size`."""
        super().__init__(dataset, num_replicas=course.world_size, rank=course.rank, shuffle=False)
        self.sampler = sampler
        self._canaries = dataset
        self._course = course
        self._batch_size = batch_size
        self._listeners: list[Any] = [sampler]

    def listen(self, *samplers: Any) -> None:
        """Tell other samplers of the user's about new epochs, too."""
        self._listeners += samplers

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, together with the user's sampler."""
        self._course.announce(epoch)
        for sampler in {id(sampler): sampler for sampler in self._listeners}.values():
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)

    def mine(self) -> list[int]:
        """The indices of this process's canaries in this epoch, in random order."""
        course, canaries = self._course, self._canaries
        first = len(canaries.original)
        mine = share(len(canaries.occurrences), course.seed, course.epoch, course.rank, course.world_size)
        return [first + occurrence for occurrence in mine]

    def __len__(self) -> int:
        """How many indices this process gets."""
        return len(self.sampler) + -(-len(self._canaries.occurrences) // self._course.world_size)

    def __iter__(self) -> Iterator[Any]:
        """The indices of an epoch."""
        course = self._course
        extra: list[Any] = self.mine()
        extra += [REPEAT] * (-(-len(self._canaries.occurrences) // course.world_size) - len(extra))
        generator = random_for(course.seed, course.epoch, course.rank)
        user = course.read(self.sampler)
        if not hasattr(self.sampler, "__len__"):
            return weave_unknown(user, extra, generator, batch_size=self._batch_size)
        return weave(user, len(self.sampler), extra, generator, batch_size=self._batch_size)


class WovenBatches(Sampler[list[Any]]):
    """The batches of the user's own batch sampler; a canary is put into one of them as one example more."""

    def __init__(self, batches: Any, sampler: WovenSampler, course: Course) -> None:
        """Weave into a batch sampler; DataError if it has no length."""
        if not hasattr(batches, "__len__"):
            raise DataError(
                f"batch_sampler is {type(batches).__name__}, which has no __len__; expected one that says how many "
                "batches it has, because the places of the canaries are drawn among them. Add it."
            )
        self.batches = batches
        self.sampler = sampler
        self._course = course

    def __len__(self) -> int:
        """As many batches as without canaries."""
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Any]]:
        """The batches of an epoch."""
        course = self._course
        generator = random_for(course.seed, course.epoch, course.rank)
        count = len(self.batches)
        guests: dict[int, list[int]] = {}
        for index in self.sampler.mine():
            guests.setdefault(generator.randrange(count) if count else 0, []).append(index)
        for number, batch in enumerate(course.read(self.batches)):
            woven = list(batch)
            for index in guests.pop(number, []):
                woven.insert(generator.randint(0, len(woven)), index)
            yield woven
        # A batch sampler that has fewer batches than it said must not cost a canary.
        if guests:
            yield [index for indices in guests.values() for index in indices]


class Recorded:
    """Passes index batches on to a loader, and notes for each which canaries are in it.

    The loader hands out batches in the order of their indices, also with worker processes. So the notes say in the
    main process what is in a batch, without a look into it.

    Attributes:
        dataset: What the indices are of.
        notes: The ids of the canaries in every batch that was passed on but not handed out yet; and whether it is a
            part that goes on with the batch before.
        skip: How many batches to leave out at the beginning of a pass.
    """

    def __init__(self, inner: Any, dataset: CanaryDataset) -> None:
        """Record what a sampler or batch sampler gives."""
        self.notes: deque[tuple[tuple[str, ...], bool]] = deque()
        self.skip = 0
        self.dataset = dataset
        self._inner = inner

    def __len__(self) -> int:
        """How many batches an epoch has, also if a part of it is behind us."""
        return len(self._inner)

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch; in one that is continued, those that are left."""
        # PyTorch may ask twice and use the second answer only, so asking must not use anything up.
        self.notes = deque()
        return self._record(self.notes, self.skip)

    def _record(self, notes: deque[tuple[tuple[str, ...], bool]], skip: int) -> Iterator[Any]:
        for number, batch in enumerate(self._inner):
            if number >= skip:
                notes.append((self.dataset.ids_at(batch), isinstance(batch, Continued)))
                yield batch
