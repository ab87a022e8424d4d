"""`redact_data`: a data module, a loader or a dataset of texts, from which no secret comes out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_exposure._checks import refusal
from lightning_exposure.data.datamodule import CanaryDataModule
from lightning_exposure.data.loader_collections import loaders_in, replaced
from lightning_exposure.data.packages import packages_of
from lightning_exposure.defences.redacting.redactor import FindsSecrets, How, Redactor
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.report.record import RunRecord

_LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def redact_data(data: Any, scanner: FindsSecrets | None = None, how: How = "mask", *, key: bytes | None = None) -> Any:
    """The same data without the secrets in their texts: for one line around what a Trainer is given.

    Every string in an item is redacted, also inside of dictionaries, tuples and lists, before the loader's own collate
    function makes batches of them. So tokenize there, and not in the dataset: items without any text are refused. What
    is given is left as it is.

    With pseudonyms, the items of a map-style dataset are all looked at once before the first is handed out, so that
    every process that loads them gives the same ones.

    Args:
        data: A `LightningDataModule` (all its loaders are redacted), a `DataLoader`, or a dataset.
        scanner: What finds the secrets; None: `Scanner()`.
        how: "mask" or "pseudonym", as in `redact`.
        key: What pseudonyms depend on; None: the key of this machine.

    Returns:
        A data module of a subclass, a loader of the same class, or a dataset. A data module writes what was done into
        the record of a run.

    Raises:
        ArgumentError: It is none of these, or holds canaries, which would be redacted, too.
        DataError: Its items are no texts.

    Example:
        >>> loader = redact_data(DataLoader(["my ssn is 536-90-4399", "hello"], batch_size=2))
        >>> next(iter(loader))
        ['my ssn is [ssn]', 'hello']
    """
    redactor = Redactor(scanner, how, key=key)
    if isinstance(data, CanaryDataModule):
        raise ArgumentError(
            "data is a CanaryDataModule; expected one without canaries, because they would be redacted, too. Write "
            "CanaryDataModule(redact_data(...), ...)."
        )
    if packages_of(data, "LightningDataModule"):
        return _wrapped(type(data), {**vars(data), "_redaction": _Redaction(redactor)})
    redaction = _Redaction(redactor)
    if isinstance(data, DataLoader):
        return redaction.loader(data)
    if isinstance(data, IterableDataset):
        return RedactedStream(data, redactor)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str | Mapping):
        return redaction.dataset(data)
    raise refusal("data", data, "a LightningDataModule, a DataLoader or a dataset of texts", with_type=True)


class RedactedDataset(Dataset[Any]):
    """The items of another dataset without their secrets; every other attribute is that of the dataset.

    Args:
        original: The dataset.
        redactor: What redacts.
    """

    def __init__(self, original: Any, redactor: Redactor) -> None:
        self.original = original
        self.redactor = redactor

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.original)

    def __getitem__(self, index: Any, /) -> Any:
        """An item without its secrets."""
        return redacted(self.original[index], self.redactor)

    def __getattr__(self, name: str) -> Any:
        """Any other attribute is that of the dataset."""
        if name.startswith("__") or "original" not in vars(self):
            raise AttributeError(name)
        return getattr(self.original, name)


class RedactedStream(IterableDataset[Any]):
    """The same for an iterable dataset."""

    def __init__(self, original: Any, redactor: Redactor) -> None:
        self.original = original
        self.redactor = redactor

    def __iter__(self) -> Iterator[Any]:
        """The items without their secrets."""
        for item in self.original:
            check_has_text(item)
            yield redacted(item, self.redactor)


def redacted(item: Any, redactor: Redactor) -> Any:
    """An item in which every string is redacted."""
    if isinstance(item, str):
        return redactor(item)
    if isinstance(item, Mapping):
        return {key: redacted(value, redactor) for key, value in item.items()}
    if isinstance(item, list | tuple):
        parts = [redacted(value, redactor) for value in item]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    return item


def texts_in(item: Any) -> Iterator[str]:
    """The strings in an item."""
    if isinstance(item, str):
        yield item
    elif isinstance(item, Mapping | list | tuple):
        for value in item.values() if isinstance(item, Mapping) else item:
            yield from texts_in(value)


def check_has_text(item: Any) -> None:
    """Refuse an item without any string.

    Raises:
        DataError: It has none.
    """
    if next(texts_in(item), None) is None:
        raise DataError(
            f"data has items of type {type(item).__name__} without any text in them; expected texts, because secrets "
            "cannot be found in token ids. Redact before tokenization: give redact() the raw text, or tokenize in the "
            "collate function of the loader."
        )


class _Redaction:
    """Puts redaction into loaders, and remembers which datasets were looked at."""

    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self._learnt: list[Any] = []

    def dataset(self, dataset: Any) -> RedactedDataset:
        """A map-style dataset with redaction."""
        if len(dataset):
            check_has_text(dataset[0])
        if self.redactor.how == "pseudonym" and not any(dataset is known for known in self._learnt):
            self.redactor.learn(text for number in range(len(dataset)) for text in texts_in(dataset[number]))
            self._learnt.append(dataset)
        return RedactedDataset(dataset, self.redactor)

    def loader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """A loader with redaction, of the same class and with all its settings."""
        inside: Any = loader.dataset
        if isinstance(inside, IterableDataset):
            if self.redactor.how == "pseudonym" and loader.num_workers:
                raise ArgumentError(
                    f"data has a loader of an iterable dataset with num_workers={loader.num_workers}; expected 0 with "
                    "how='pseudonym', because processes that read different items cannot agree on pseudonyms. Set it "
                    "to 0, or use how='mask'."
                )
            dataset: Any = RedactedStream(inside, self.redactor)
        else:
            dataset = self.dataset(inside)
        copied = copy.copy(loader)
        # A loader refuses to change its dataset once it is made, but a copy may be finished like a new one.
        vars(copied).update(dataset=dataset, _iterator=None)
        return copied

    def all_loaders(self, loaders: Any) -> Any:
        """A collection of loaders with redaction in each."""
        found = loaders_in(loaders)
        if not found:
            raise DataError(
                f"data has loaders of type {type(loaders).__name__}, without a torch DataLoader; expected a "
                "DataLoader, a list or dict of them, or a CombinedLoader."
            )
        for loader in found.values():
            loaders = replaced(loaders, loader, self.loader(loader))
        return loaders


class RedactingDataModule:
    """What stands before the class of the user's data module: the same loaders, redacted."""

    _redaction: _Redaction

    def add_to_record(self, record: RunRecord) -> None:
        """Say in the record of a run that its data were redacted; and what the data module itself has to say."""
        theirs = getattr(super(), "add_to_record", None)
        if theirs is not None:
            theirs(record)
        record.defences.append({"name": "redaction", **self._redaction.redactor.settings})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for a process that trains together with this one: its class is made there again."""
        return _wrapped, (type(self).__mro__[2], dict(vars(self)))


def _wrapped(kind: type, state: dict[str, Any]) -> Any:
    """A data module of a class, with the loaders that it has redacted; Lightning asks which hooks a class has."""

    def redacting(name: str) -> Any:
        def loaders(self: Any) -> Any:
            return self._redaction.all_loaders(getattr(super(made, self), name)())

        loaders.__name__ = name
        loaders.__doc__ = "The loaders of the wrapped data module, redacted."
        return loaders

    has = [name for name in _LOADERS if not _is_base_hook(kind, name)]
    made: Any = type(f"Redacted{kind.__name__}", (RedactingDataModule, kind), {name: redacting(name) for name in has})
    instance = object.__new__(made)
    vars(instance).update(state)
    return instance


def _is_base_hook(kind: type, name: str) -> bool:
    """Whether a class has a hook only as Lightning itself has it."""
    owner = next(base for base in kind.__mro__ if name in vars(base))
    return owner.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")
