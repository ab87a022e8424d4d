"""A copy of the user's data loader that has the canaries in it and counts them as they come out."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler
from torch.utils.data.dataloader import default_collate
from torch.utils.data.distributed import DistributedSampler

from lightning_exposure.data._datasets import (
    CanaryDataset,
    CanaryStream,
    Occurrences,
    SizedCanaryStream,
    Tagging,
)
from lightning_exposure.data._samplers import Course, Recorded, WovenBatches, WovenSampler, sharded
from lightning_exposure.errors import DataError

_REMEMBERED = 64
"""How many of the last batches are remembered; a Trainer fetches one or two ahead of what it trains on."""


class Weaver:
    """Makes a loader contain the canaries, and knows how far it has been read.

    Args:
        occurrences: The canaries of an epoch.
        course: Seed, process and epoch.
        record: Called with the ids of the canaries in every batch that was fetched.
        shard: Whether Lightning would split the user's data among the processes.
        shuffle: Whether it would shuffle when it does.
        stream_length: About how many items an iterable dataset has.
    """

    def __init__(
        self,
        occurrences: Occurrences,
        course: Course,
        record: Callable[[tuple[str, ...]], None],
        *,
        shard: bool,
        shuffle: bool,
        stream_length: int | None,
    ) -> None:
        self.course = course
        self.delivered = 0
        self.recent: deque[tuple[str, ...]] = deque(maxlen=_REMEMBERED)
        self._recorded: Recorded
        self._occurrences = occurrences
        self._record = record
        self._shard = shard
        self._shuffle = shuffle
        self._stream_length = stream_length

    # ---- making the loader --------------------------------------------------------------------------------

    def install(self, loader: DataLoader[Any]) -> None:
        """Put the canaries into a loader that belongs to us."""
        # A loader refuses to change these once it is made, but a copy may be finished like a new one.
        parts = self._stream_parts(loader) if _is_iterable(loader) else self._map_parts(loader)
        vars(loader).update(parts, _iterator=None)

    def _map_parts(self, loader: DataLoader[Any]) -> dict[str, Any]:
        given: Any = loader.dataset
        original = given.original if isinstance(given, CanaryDataset) else given
        dataset = CanaryDataset(original, self._occurrences)
        if len(original):
            self._occurrences.check(original[0], same_shape=loader.collate_fn is default_collate)
        batches: Any = loader.batch_sampler
        parts: dict[str, Any] = {"dataset": dataset}
        if batches is None:
            parts["sampler"] = self._sampler(loader.sampler, dataset)
        elif type(batches) is BatchSampler:
            dropped = batches.batch_size if batches.drop_last else 1
            parts["sampler"] = self._sampler(batches.sampler, dataset, batch_size=dropped)
            parts["batch_sampler"] = BatchSampler(parts["sampler"], batches.batch_size, batches.drop_last)
        else:
            parts.update(self._own_batches(batches, dataset))
        self._recorded = Recorded(parts.get("batch_sampler", parts["sampler"]), dataset)
        return parts

    def _sampler(self, theirs: Any, dataset: CanaryDataset, *, batch_size: int = 1) -> WovenSampler:
        if isinstance(theirs, SequentialSampler):
            theirs = SequentialSampler(dataset.original)  # Lightning may have made it for all of our dataset
        if self._shard and not isinstance(theirs, DistributedSampler):
            theirs = sharded(theirs, dataset.original, self.course, shuffle=self._shuffle)
        return WovenSampler(theirs, dataset, self.course, batch_size=batch_size)

    def _own_batches(self, batches: Any, dataset: CanaryDataset) -> dict[str, Any]:
        """The parts of a loader with a batch sampler of the user's own."""
        theirs = getattr(batches, "sampler", None)
        sampler = WovenSampler(theirs, dataset, self.course, batch_size=1)
        if self._shard and not isinstance(theirs, DistributedSampler):
            batches = sharded(batches, dataset.original, self.course, shuffle=False)
        return {"sampler": sampler, "batch_sampler": WovenBatches(batches, sampler, self.course)}

    def _stream_parts(self, loader: DataLoader[Any]) -> dict[str, Any]:
        given: Any = loader.dataset
        original = given.original if isinstance(given, CanaryStream) else given
        collate = loader.collate_fn.collate if isinstance(loader.collate_fn, Tagging) else loader.collate_fn
        sized = hasattr(original, "__len__")
        hint = self._stream_length
        if hint is None and sized:
            hint = len(original)
        dataset = (SizedCanaryStream if sized else CanaryStream)(
            original,
            self._occurrences,
            seed=self.course.seed,
            rank=self.course.rank,
            world_size=self.course.world_size,
            workers=max(1, loader.num_workers),
            batch_size=(loader.batch_size or 1) if loader.drop_last else 1,
            hint=hint,
            same_shape=collate is default_collate,
        )
        return {"dataset": dataset, "collate_fn": Tagging(collate, batched=loader.batch_size is not None)}

    def take_batches(self, batches: Any) -> None:
        """Let somebody else draw the batches: indices into the user's items, followed by the canaries."""
        self._recorded = Recorded(batches, self._recorded.dataset)

    # ---- reading it ---------------------------------------------------------------------------------------

    def index_sampler(self, loader: DataLoader[Any]) -> Recorded | None:
        """Where a map-style loader takes its indices from."""
        return None if _is_iterable(loader) else self._recorded

    def begin(self, loader: DataLoader[Any], start: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """One pass over the loader, from the first batch that was not trained on yet."""
        skip = self.course.begin()
        self.delivered = skip
        self.recent.clear()
        if isinstance(loader.dataset, CanaryStream):
            loader.dataset.epoch = self.course.epoch
            return self._count_tagged(start(), skip)
        self._recorded.skip = skip
        batches = start()
        return self._count(batches, self._recorded.notes)

    def _count(self, batches: Iterator[Any], notes: deque[tuple[tuple[str, ...], bool]]) -> Iterator[Any]:
        for batch in batches:
            ids, continued = notes.popleft()
            if continued:
                self.recent[-1] += ids
                self._record(ids)
            else:
                self._deliver(ids)
            yield batch

    def _count_tagged(self, batches: Iterator[Any], skip: int) -> Iterator[Any]:
        for number, tagged in enumerate(batches):
            if number < skip:
                continue
            batch, ids = tagged
            self._deliver(tuple(ids))  # pinning memory makes a list of them
            yield batch

    def _deliver(self, ids: tuple[str, ...]) -> None:
        self.delivered += 1
        self.recent.append(ids)
        self._record(ids)

    def fetched_ahead(self, trained: int | None) -> list[tuple[str, ...]]:
        """The canaries in the batches that were fetched but not trained on yet."""
        ahead = 0 if trained is None else max(0, self.delivered - trained)
        return list(self.recent)[len(self.recent) - ahead :]

    # ---- checkpoints --------------------------------------------------------------------------------------

    def state_dict(self, trained: int | None) -> dict[str, Any]:
        """Where the loader stands, after training on some batches of the epoch."""
        return {
            "epoch": self.course.epoch,
            "batches": self.delivered - len(self.fetched_ahead(trained)),
            "randomness": dict(self.course.randomness),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where a checkpoint was written."""
        self.course.announce(int(state["epoch"]))
        self.course.skip = int(state["batches"])
        self.course.replay = dict(state["randomness"]) or None


class WovenLoader(DataLoader[Any]):
    """What every loader of ours is, in front of the class of the user's loader.

    The weaver is an attribute of the class: whoever makes another loader of the same type, as Lightning does for
    `overfit_batches`, makes one with canaries.
    """

    weaver: ClassVar[Weaver]
    trained: ClassVar[Callable[[], int | None]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weaver.install(self)

    @property
    def _index_sampler(self) -> Any:
        # The one place where PyTorch asks for indices. The public samplers stay of the types that Lightning knows.
        recorded = self.weaver.index_sampler(self)
        return super()._index_sampler if recorded is None else recorded

    def __iter__(self) -> Any:
        """The batches of an epoch; the canaries in them are counted."""
        return self.weaver.begin(self, super().__iter__)

    def resampled(self, batches: Any) -> DataLoader[Any]:
        """The same loader with batches that somebody else draws, of all items of its dataset.

        Each occurrence of a canary is then an item like any other. What comes out is still counted.

        Args:
            batches: Gives lists of indices.
        """
        again = copy.copy(self)
        vars(again).update(batch_sampler=batches, _iterator=None)
        self.weaver.take_batches(batches)
        return again

    def state_dict(self) -> dict[str, Any]:
        """Called by the Trainer when it writes a checkpoint."""
        return self.weaver.state_dict(type(self).trained())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Called by the Trainer when it resumes in the middle of an epoch."""
        self.weaver.load_state_dict(state)


def weave_loader(
    loader: DataLoader[Any], weaver: Weaver, trained: Callable[[], int | None] = lambda: None
) -> DataLoader[Any]:
    """A loader like the user's, of the same class and with all its settings, that has the canaries in it.

    Args:
        loader: The user's loader, which is left as it is.
        weaver: What puts the canaries in.
        trained: How many batches of this epoch were trained on, if that is known to be less than were fetched.

    Raises:
        DataError: The loader is one that canaries cannot be put into, or an example does not fit its dataset.
    """
    theirs = type(loader)
    if _is_iterable(loader) and theirs.__iter__ is not DataLoader.__iter__:
        raise DataError(
            f"train_dataloader is a {theirs.__name__}, which has an __iter__ of its own over an iterable dataset, so "
            "the canaries in its batches could not be counted; expected a torch.utils.data.DataLoader."
        )
    bases = (WovenLoader,) if theirs is DataLoader else (WovenLoader, theirs)
    woven = copy.copy(loader)
    woven.__class__ = type(f"Woven{theirs.__name__}", bases, {"weaver": weaver, "trained": staticmethod(trained)})
    weaver.install(woven)
    return woven


def _is_iterable(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)
