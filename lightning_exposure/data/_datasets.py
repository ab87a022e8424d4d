"""The user's dataset and the canaries as one dataset, map-style or iterable."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lightning_exposure.data._example_structure import check_example
from lightning_exposure.data._weaving import REPEAT, random_for, share, weave_unknown
from lightning_exposure.errors import DataError

_INTEGERS = (int, np.integer)


@dataclass(frozen=True)
class Occurrences:
    """The canaries of an epoch, each as often as it is to occur.

    Attributes:
        ids: The ids of the canaries.
        examples: What `encode` made of each.
        numbers: For every occurrence, the number of its canary.
    """

    ids: tuple[str, ...]
    examples: tuple[Any, ...]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        """How many occurrences there are."""
        return len(self.numbers)

    def example(self, occurrence: int) -> Any:
        """An example of its own, so that what one training step does to it is not seen by the next."""
        return copy.deepcopy(self.examples[self.numbers[occurrence]])

    def id(self, occurrence: int) -> str:
        """Whose occurrence it is."""
        return self.ids[self.numbers[occurrence]]

    def check(self, item: Any, *, same_shape: bool) -> None:
        """Compare the example of every canary with the dataset's first item; DataError if one does not fit."""
        for id_, example in zip(self.ids, self.examples, strict=True):
            check_example(id_, example, item, same_shape=same_shape)


class CanaryDataset(Dataset[Any]):
    """A map-style dataset, followed by one item for every occurrence of a canary.

    Attributes:
        original: The user's dataset.
        occurrences: The canaries.
    """

    def __init__(self, original: Any, occurrences: Occurrences) -> None:
        """Append occurrences to a dataset; DataError if it has no length."""
        if not hasattr(original, "__len__"):
            raise DataError(
                f"train_dataloader has the dataset {type(original).__name__}, which has no __len__; expected a "
                "map-style dataset with one, because the canaries are numbered from its end on. Add it."
            )
        self.original = original
        self.occurrences = occurrences
        self._first = len(original)
        self._end = self._first + len(occurrences)
        if hasattr(original, "__getitems__"):
            # PyTorch asks for a batch at once if a dataset can do it; so can this one, if that one can.
            self.__getitems__ = self._get_batch

    def __len__(self) -> int:
        """How many items there are, with the canaries."""
        return self._end

    def __getitem__(self, index: Any, /) -> Any:
        """An item of the user's dataset as it is, or a canary."""
        occurrence = self.occurrence_at(index)
        return self.original[index] if occurrence is None else self.occurrences.example(occurrence)

    def occurrence_at(self, index: Any) -> int | None:
        """Which occurrence of a canary an index stands for; None for an index of the user's dataset."""
        # This is asked for every example twice, so it has to be quick.
        if isinstance(index, _INTEGERS) and self._first <= index < self._end:
            return int(index) - self._first
        return None

    def user_at(self, index: int) -> str | None:
        """The canary that an index stands for: with all its occurrences it is a user of its own (see `name_users`)."""
        occurrence = self.occurrence_at(index)
        return None if occurrence is None else self.occurrences.id(occurrence)

    def ids_at(self, indices: Any) -> tuple[str, ...]:
        """The ids of the canaries among some indices."""
        listed = indices if isinstance(indices, list | tuple) else [indices]
        found = (self.occurrence_at(index) for index in listed)
        return tuple(self.occurrences.id(occurrence) for occurrence in found if occurrence is not None)

    def _get_batch(self, indices: Sequence[Any]) -> list[Any]:
        ours = {place: self[index] for place, index in enumerate(indices) if self.occurrence_at(index) is not None}
        if len(ours) == len(indices):
            return list(ours.values())
        theirs = iter(self.original.__getitems__([index for place, index in enumerate(indices) if place not in ours]))
        return [ours[place] if place in ours else next(theirs) for place in range(len(indices))]

    def __getstate__(self) -> dict[str, Any]:
        """What a worker process gets: without the bound method, which it makes again."""
        return {"original": self.original, "occurrences": self.occurrences}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the dataset again in a worker process."""
        self.__init__(**state)  # type: ignore[misc]


class Marked(NamedTuple):
    """An item of an iterable dataset that is a canary."""

    example: Any
    id: str


class Tagged(NamedTuple):
    """A batch and the ids of the canaries in it, on their way from a worker process."""

    batch: Any
    ids: tuple[str, ...]


class Tagging:
    """The user's collate function; what it returns is tagged with the canaries that went into it."""

    def __init__(self, collate: Callable[[Any], Any], *, batched: bool) -> None:
        """Wrap a function that collates a list of items or, if not `batched`, converts one item."""
        self.collate = collate
        self.batched = batched

    def __call__(self, items: Any) -> Tagged:
        """Collate items, some of them marked."""
        listed = items if self.batched else [items]
        ids = tuple(item.id for item in listed if isinstance(item, Marked))
        plain = [item.example if isinstance(item, Marked) else item for item in listed]
        return Tagged(self.collate(plain if self.batched else plain[0]), ids)


class CanaryStream(IterableDataset[Any]):
    """An iterable dataset with the canaries woven in, each in one process and one worker only.

    Attributes:
        original: The user's dataset.
        occurrences: The canaries.
        epoch: Which epoch the next pass is.
    """

    def __init__(
        self,
        original: Any,
        occurrences: Occurrences,
        *,
        seed: int,
        rank: int,
        world_size: int,
        workers: int,
        batch_size: int,
        hint: int | None,
        same_shape: bool,
    ) -> None:
        """Weave occurrences into a dataset; see `weave_unknown` for `batch_size` and `hint`."""
        self.original = original
        self.occurrences = occurrences
        self.epoch = 0
        self._seed = seed
        self._rank, self._world_size, self._workers = rank, world_size, workers
        self._batch_size = batch_size
        self._hint = hint
        self._same_shape = same_shape

    def __iter__(self) -> Iterator[Any]:
        """The user's items, as they are, and this worker's canaries."""
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        slot, slots = self._rank * workers + number, self._world_size * workers
        # A worker that lives on does not hear of the next epoch, so the dataset counts for itself.
        epoch, self.epoch = self.epoch, self.epoch + 1
        mine = share(len(self.occurrences), self._seed, epoch, slot, slots)
        extra: list[Any] = [Marked(self.occurrences.example(j), self.occurrences.id(j)) for j in mine]
        if self._world_size > 1:
            extra += [REPEAT] * (-(-len(self.occurrences) // slots) - len(extra))
        return weave_unknown(
            self._checked(iter(self.original)),
            extra,
            random_for(self._seed, epoch, slot),
            hint=None if self._hint is None else max(1, self._hint // workers),
            batch_size=self._batch_size,
        )

    def _checked(self, items: Iterator[Any]) -> Iterator[Any]:
        # Asking for an item beforehand would use up the first of a stream that can be read only once.
        for first in items:
            self.occurrences.check(first, same_shape=self._same_shape)
            return chain([first], items)
        return items


class SizedCanaryStream(CanaryStream):
    """The same for a dataset that says how long it is."""

    def __len__(self) -> int:
        """How many items this process gets."""
        # With several processes, every worker of each of them gets the same number: see REPEAT.
        slots = self._world_size * self._workers
        ours = self._workers * -(-len(self.occurrences) // slots) if self._world_size > 1 else len(self.occurrences)
        return len(self.original) + ours
