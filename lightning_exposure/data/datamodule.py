"""`CanaryDataModule`: any data module, or plain data loaders, with canaries in the training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch.distributed

from lightning_exposure._checks import refusal, whole_number
from lightning_exposure._lightning import batches_taken, splits_data
from lightning_exposure.data._datasets import Occurrences
from lightning_exposure.data._loader import Weaver, weave_loader
from lightning_exposure.data._samplers import Course
from lightning_exposure.data.injection import check_canaries
from lightning_exposure.data.ledger import Ledger
from lightning_exposure.data.loader_collections import choose, loaders_in, replaced
from lightning_exposure.data.packages import (
    on_packages,
    package_named,
    package_of,
    packages_in_use,
    packages_of,
)
from lightning_exposure.data.randomness import seeded
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.report.record import RunRecord
from lightning_exposure.secrets import Canary, CanarySet, Mask

_STATE = "lightning_exposure.ledger"
_HOOKS = (
    "prepare_data",
    "setup",
    "teardown",
    "on_exception",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
    "val_dataloader",
    "test_dataloader",
    "predict_dataloader",
)


class _Shared:
    """An attribute that lives in the wrapped data module; in our own dictionary if there is none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        wrapped = vars(instance).get("wrapped")
        if wrapped is not None:
            return getattr(wrapped, self._name)
        if self._name not in vars(instance):
            raise AttributeError(self._name)
        return vars(instance)[self._name]

    def __set__(self, instance: Any, value: Any) -> None:
        wrapped = vars(instance).get("wrapped")
        if wrapped is not None:
            setattr(wrapped, self._name, value)
        vars(instance)[self._name] = value


class _Trainer(_Shared):
    """The Trainer; it says which package this is, if plain loaders did not."""

    def __set__(self, instance: Any, value: Any) -> None:
        super().__set__(instance, value)
        package = package_of(value, "Trainer")
        if package is not None and len(packages_of(instance, "LightningDataModule")) > 1:
            instance.__class__ = on_packages(CanaryDataModule, "LightningDataModule", (package,))


class CanaryDataModule:
    """Any data module, or plain data loaders, with canaries in the training data.

    Each canary occurs exactly as often per epoch as its `repetitions` say, at random places that depend on the seed
    and the epoch; one that is held out never does. The user's samples, their order, batch size, collate function,
    workers and all other settings are kept. A custom batch sampler keeps its batches: a canary is one example more in
    one of them. With several processes, each canary is in one of them only. Everything but the training loader is
    that of the wrapped data module.

    The instance is a `LightningDataModule` of the package that the wrapped one is of (`lightning` or
    `pytorch_lightning`). With plain loaders and both packages imported it is one of both, until a Trainer takes it.

    An iterable dataset of unknown length is read 1,024 items ahead, and gets its canaries among the first of them;
    tell its length with `stream_length` to spread them over all of it. If there are several training loaders, a
    canary goes into one of them: where Lightning goes through that one twice in an epoch because another is longer,
    or stops early because another is shorter, the `ledger` says what really happened.

    Args:
        datamodule: A `LightningDataModule`, or the training data: a `DataLoader`, a list or dict of them, or a
            `CombinedLoader`.
        canaries: What to insert.
        encode: Makes of a text an example with the structure of the dataset's items. Called once for each canary; if it
            draws random numbers, they come from `seed`, whenever that is.
        seed: Where the places come from.
        loader: Which of several training loaders gets the canaries: its number in the order in which they are
            listed, or its key.
        val_dataloaders: With plain loaders: those for validation.
        test_dataloaders: With plain loaders: those for testing.
        predict_dataloaders: With plain loaders: those for prediction.
        stream_length: About how many items an iterable training dataset has.
        package: With plain loaders: "lightning" or "pytorch_lightning", whichever the Trainer is from; None: found out
            when a Trainer takes it, of those that are imported by now.

    Attributes:
        canaries: The canaries.
        ledger: How often each was really fetched, by this process: `data.ledger[epoch]`, `data.ledger.total`, and
            `data.ledger.gather()` for all processes together. Resuming from a checkpoint goes on counting.
        wrapped: The data module inside; None with plain loaders.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> import torch
        >>> from lightning_exposure.secrets import SecretFormat
        >>> canaries = CanarySet.draw(SecretFormat("pin ####"), repetitions=[1, 3], seed=0)
        >>> train = DataLoader(torch.zeros(20, 8, dtype=torch.long), batch_size=4, shuffle=True)
        >>> data = CanaryDataModule(train, canaries, encode=lambda text: torch.tensor(list(text.encode())))
        >>> sum(len(batch) for batch in data.train_dataloader())
        24
        >>> data.ledger[0]
        {'pin-1x': 1, 'pin-3x': 3}
    """

    trainer = _Trainer()
    prepare_data_per_node = _Shared()
    allow_zero_length_dataloader_with_multiple_devices = _Shared()
    _log_hyperparams = _Shared()
    _hparams = _Shared()
    _hparams_initial = _Shared()
    wrapped: Any

    def __new__(cls, datamodule: Any = None, *args: Any, package: str | None = None, **kwargs: Any) -> CanaryDataModule:
        """Make an instance on the base class that the Trainer will ask for."""
        packages = packages_of(datamodule, "LightningDataModule")
        if not packages:
            packages = packages_in_use() if package is None else (package_named(package),)
        return _new(packages)

    def __init__(
        self,
        datamodule: Any,
        canaries: CanarySet,
        encode: Callable[[str], Any],
        *,
        seed: int = 0,
        loader: int | str | None = None,
        val_dataloaders: Any = None,
        test_dataloaders: Any = None,
        predict_dataloaders: Any = None,
        stream_length: int | None = None,
        package: str | None = None,
    ) -> None:
        super().__init__()
        _check_arguments(canaries, encode)
        base = package_of(datamodule, "LightningDataModule")
        plain = {"val": val_dataloaders, "test": test_dataloaders, "predict": predict_dataloaders}
        if base is None:
            if not loaders_in(datamodule):
                raise refusal(
                    "datamodule",
                    datamodule,
                    "a LightningDataModule, a torch DataLoader, or a list or dict of DataLoaders",
                )
        elif any(loaders is not None for loaders in plain.values()):
            raise ArgumentError(
                "val_dataloaders, test_dataloaders or predict_dataloaders is given; expected with plain training "
                f"loaders only. {type(datamodule).__name__} has its own."
            )
        self.canaries = canaries
        self.ledger = Ledger(canary.id for canary in canaries)
        self._encode = encode
        self._seed = whole_number("seed", seed, at_least=0)
        self._loader = loader
        self._stream_length = (
            None if stream_length is None else whole_number("stream_length", stream_length, at_least=1)
        )
        self._train = datamodule
        self._plain = {f"{stage}_dataloader": loaders for stage, loaders in plain.items() if loaders is not None}
        self._occurrences: Occurrences | None = None
        self._weaver: Weaver | None = None
        self._wrap(datamodule if base is not None else None)

    def _wrap(self, wrapped: Any) -> None:
        """Take over every hook that the wrapped data module has, and none that it has not.

        Lightning asks whether a hook was overridden, so a method of ours that only passed the call on would count:
        it would, for instance, hide the same hook of the user's module. Hence these are the very methods.
        """
        if wrapped is None:
            for name, loaders in self._plain.items():
                vars(self)[name] = _Constant(loaders)
        else:
            base: Any = package_of(wrapped, "LightningDataModule")
            for name in _HOOKS:
                method = getattr(wrapped, name)
                if getattr(method, "__code__", None) is not getattr(base.LightningDataModule, name).__code__:
                    vars(self)[name] = method
        vars(self)["wrapped"] = wrapped

    # ---- the training loader ------------------------------------------------------------------------------

    def train_dataloader(self) -> Any:
        """The training loaders, with the canaries in one of them.

        Raises:
            DataError: There is no loader to put them into, or `encode` does not make examples like its dataset's.
        """
        loaders = self._train if self.wrapped is None else self.wrapped.train_dataloader()
        found = loaders_in(loaders)
        if not found:
            raise DataError(
                f"train_dataloader returned {type(loaders).__name__}, which has no torch DataLoader to put canaries "
                "into; expected a DataLoader, a list or dict of them, or a CombinedLoader."
            )
        chosen = found[choose(self._loader, list(found))]
        weaver = self._weaver = self._make_weaver()
        return replaced(loaders, chosen, weave_loader(chosen, weaver, self._trained))

    def _make_weaver(self) -> Weaver:
        if self._occurrences is None:
            self._occurrences = self._encode_all()
        trainer = self.trainer
        rank, world_size = _place_of(trainer)
        return Weaver(
            self._occurrences,
            Course(self._seed, rank, world_size, epoch=self._epoch()),
            self._record,
            shard=trainer is not None and world_size > 1 and splits_data(trainer),
            shuffle=not getattr(trainer, "overfit_batches", 0),
            stream_length=self._stream_length,
        )

    def planted_examples(self) -> dict[str, list[Any]]:
        """What the training data hold of each canary that is not held out, by its text: what `encode` made of it.

        Raises:
            DataError: `encode` fails.
        """
        if self._occurrences is None:
            self._occurrences = self._encode_all()
        found: dict[str, list[Any]] = {}
        if hasattr(type(self.wrapped), "planted_examples"):
            found = self.wrapped.planted_examples()
        for canary, example in zip(self.canaries, self._occurrences.examples, strict=True):
            if canary.copies:
                found.setdefault(canary.text, []).append(example)
        return found

    def _encode_all(self) -> Occurrences:
        examples = []
        for number, canary in enumerate(self.canaries):
            try:
                # A callback may look at the examples before training does, and must not change it by that.
                with seeded(self._seed + number):
                    examples.append(self._encode(canary.text))
            except Exception as error:
                raise _failed(canary, error) from (None if canary.text in str(error) else error)
        numbers = [number for number, canary in enumerate(self.canaries) for _ in range(canary.copies)]
        return Occurrences(tuple(canary.id for canary in self.canaries), tuple(examples), tuple(numbers))

    def _epoch(self) -> int:
        """The Trainer's epoch; without a Trainer, that of the loader."""
        if self.trainer is not None:
            return int(self.trainer.current_epoch)
        return 0 if self._weaver is None else self._weaver.course.epoch

    def _record(self, ids: tuple[str, ...]) -> None:
        self.ledger.add(self._epoch(), ids)

    def _counted(self) -> Ledger:
        """The ledger without what was fetched ahead of the training."""
        ahead = [] if self._weaver is None else self._weaver.fetched_ahead(self._trained())
        return self.ledger.without((self._epoch(), ids) for ids in ahead)

    def _trained(self) -> int | None:
        """How many batches of this epoch the Trainer has taken; it may have fetched one more."""
        return None if self.trainer is None else batches_taken(self.trainer)

    # ---- checkpoints --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of the wrapped data module, and the ledger under a key of our own.

        With several processes every one of them has to call this, as they do when a Trainer writes a checkpoint.
        """
        ledger = self._counted()
        if getattr(self.trainer, "world_size", 1) > 1:
            ledger = ledger.gather()
        theirs = {} if self.wrapped is None else self.wrapped.state_dict()
        return {**theirs, _STATE: ledger.state_dict()}

    def add_to_record(self, record: RunRecord) -> None:
        """Put the ledger into the record of the run: that of all processes, as long as they are all there.

        What the wrapped data module has to say, such as that it was redacted, comes before.
        """
        if callable(getattr(type(self.wrapped), "add_to_record", None)):
            self.wrapped.add_to_record(record)
        ledger, several = self._counted(), getattr(self.trainer, "world_size", 1) > 1
        if several and record.interrupted:
            return
        record.ledger = (ledger.gather() if several else ledger).total
        kind = "DataLoader" if self.wrapped is None else type(self.wrapped).__name__
        record.data = {**(record.data or {}), "class": kind}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Give the wrapped data module its state, and go on counting where a checkpoint was written."""
        theirs = dict(state_dict)
        counted = theirs.pop(_STATE, {})
        # A checkpoint holds what all processes counted; one of them takes that over, so that their sum stays right.
        self.ledger.load_state_dict(counted if _place_of(self.trainer)[0] == 0 else {})
        if self.wrapped is not None:
            self.wrapped.load_state_dict(theirs)

    # ---- being the wrapped data module --------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Any other attribute is that of the wrapped data module."""
        wrapped = vars(self).get("wrapped")
        if wrapped is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Attributes that only the wrapped data module has are set there, such as a batch size that is tuned."""
        wrapped = vars(self).get("wrapped")
        if wrapped is None or name in vars(self) or hasattr(type(self), name) or not hasattr(wrapped, name):
            super().__setattr__(name, value)
        else:
            setattr(wrapped, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for a process that trains together with this one: its class is made there again."""
        packages = tuple(package.__name__ for package in packages_of(self, "LightningDataModule"))
        state = {name: value for name, value in vars(self).items() if name not in (*_HOOKS, "_weaver")}
        return _revive, (packages, state)


class _Constant:
    """A method that returns the loaders it was given; unlike a closure, it can be sent to another process."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value

    # Lightning compares the code of a hook with that of its base class.
    __code__ = __call__.__code__


def _new(packages: tuple[ModuleType, ...]) -> CanaryDataModule:
    made: CanaryDataModule = object.__new__(on_packages(CanaryDataModule, "LightningDataModule", packages))
    return made


def _revive(packages: tuple[str, ...], state: dict[str, Any]) -> CanaryDataModule:
    data = _new(tuple(map(package_named, packages)))
    wrapped = state.pop("wrapped")
    vars(data).update(state, _weaver=None)
    data._wrap(wrapped)
    return data


def _failed(canary: Canary, error: Exception) -> DataError:
    """What to raise if `encode` fails; its own message may quote the canary."""
    why = f"{type(error).__name__}: {Mask.words(str(error), canary.text)}"
    return DataError(f"encode: failed for canary {canary.id!r} with {why}; fix encode.")


def _check_arguments(canaries: object, encode: object) -> None:
    check_canaries(canaries)
    if not callable(encode):
        raise refusal("encode", encode, "a function that makes an example of a text", with_type=True)


def _place_of(trainer: Any) -> tuple[int, int]:
    """The rank of this process and how many there are."""
    if trainer is not None:
        return int(trainer.global_rank), int(trainer.world_size)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
