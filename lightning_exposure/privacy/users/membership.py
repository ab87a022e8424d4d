"""`Users`: who the records of a dataset belong to."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_exposure._checks import refusal, whole_number
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.privacy.steps.secure import AnyGenerator, permutation

UserOf = Callable[[Any], Hashable] | Sequence[Hashable]
"""Names the user of a record; or the names of all of them, one for each record."""

_NAME = (
    "something that is equal for all records of a user and can be hashed, such as a text or a number. Where nobody "
    "knows whose a record is, give it a name of its own, or leave it out of the data."
)


class Users:
    """Whose the records are: each belongs to one user.

    Args:
        of_record: The number of each record's user; they are numbered from 0 on, and each has a record.
        max_records_per_user: How many records of one user may be in a batch.

    Attributes:
        of_record: As given.
        most: As given.
        count: How many users there are.

    Example:
        >>> import torch
        >>> users = Users([0, 1, 0, 0], max_records_per_user=2)
        >>> users.count, users.records_of(0), users.size_of(0), users.size_of(1)
        (2, [0, 2, 3], 2, 1)
        >>> len(users.some_of(0, torch.Generator())), users.some_of(1, torch.Generator())
        (2, [1])
    """

    def __init__(self, of_record: Sequence[int] | NDArray[np.int64], *, max_records_per_user: int) -> None:
        self.of_record = np.asarray(of_record, dtype=np.int64)
        self.most = whole_number("max_records_per_user", max_records_per_user, at_least=1)
        sizes = np.bincount(self.of_record)
        self.count = len(sizes)
        self._order = np.argsort(self.of_record, kind="stable")
        self._ends = sizes.cumsum()
        self._sizes = sizes

    def __len__(self) -> int:
        """How many records there are."""
        return len(self.of_record)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Users):
            return NotImplemented
        return self.most == other.most and np.array_equal(self.of_record, other.of_record)

    __hash__ = None  # type: ignore[assignment]

    def records_of(self, user: int) -> list[int]:
        """The numbers of all of a user's records."""
        found: list[int] = self._order[self._ends[user] - self._sizes[user] : self._ends[user]].tolist()
        return found

    def size_of(self, user: int) -> int:
        """How many of a user's records are in a batch that he is in."""
        return min(int(self._sizes[user]), self.most)

    def some_of(self, user: int, generator: AnyGenerator) -> list[int]:
        """The numbers of the records with which a user is in a batch: all, or as many as may be, drawn anew each time.

        Args:
            user: His number.
            generator: Draws them, without putting back, if there are more than may be.
        """
        records = self.records_of(user)
        if len(records) <= self.most:
            return records
        chosen = permutation(len(records), generator)[: self.most].sort().values
        return [records[place] for place in chosen.tolist()]


def name_users(
    dataset: Any,
    user: UserOf,
    *,
    max_records_per_user: int,
    counted: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Users:
    """Ask for the user of every record, once.

    A dataset may know of records of its own, which it has put beside those of the user's dataset: then its method
    `user_at(number)` names their users, and gives None for all others. So is every canary of a `CanaryDataModule` a
    user of its own, with all its records.

    Args:
        dataset: With a length and an index.
        user: Is given a record, as the dataset returns it, and names its user: anything that can be compared and
            hashed. Or the names, one for each record; then no record is read.
        max_records_per_user: How many records of one user may be in a batch.
        counted: Passes the numbers of the records on, and may show how far it is.

    Raises:
        ArgumentError: `user` is neither, or one of the names is none.
        DataError: It fails for a record, or gives something that is no name.

    Example:
        >>> name_users(["a1", "b1", "a2"], lambda record: record[0], max_records_per_user=8).of_record
        array([0, 1, 0])
        >>> name_users(range(3), ["ann", "bob", "ann"], max_records_per_user=8).count
        2
    """
    own = getattr(dataset, "user_at", None)
    special = {} if own is None else {k: ("", name) for k in range(len(dataset)) if (name := own(k)) is not None}
    names = None if callable(user) else _listed(user, len(dataset), len(special))
    numbered: dict[Hashable, int] = {}
    found = np.empty(len(dataset), dtype=np.int64)
    rest = 0
    for record in counted(range(len(dataset))):
        if record in special:
            key: Hashable = special[record]
        else:
            key = (_asked(user, dataset, record) if names is None else _checked(names[rest], record),)
            rest += 1
        found[record] = numbered.setdefault(key, len(numbered))
    return Users(found, max_records_per_user=max_records_per_user)


def check_user(user: object) -> None:
    """Refuse what can name no users.

    Raises:
        ArgumentError: It is neither a function nor names, or one of them is no name.

    Example:
        >>> check_user(["ann", "bob", None])
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: user[2] is None; expected something that is equal for all records ...
    """
    if not callable(user):
        _names_of(user)


def _names_of(user: Any) -> list[Any]:
    """Names, one after the other: of a list, an array, a tensor or a column of a table."""
    shape = tuple(getattr(user, "shape", (0,)))
    listed = hasattr(user, "__len__") and hasattr(user, "__getitem__") and not isinstance(user, str | bytes | Mapping)
    if not listed or not shape:
        raise _no_names(user)
    if len(shape) == 2 and shape[1] == 1 and hasattr(user, "reshape"):
        user = user.reshape(-1)
    elif len(shape) > 1:
        raise ArgumentError(
            f"user is a {type(user).__name__} of shape {shape}; expected one name for each record, in one dimension. "
            "Of a table, give the column with the names."
        )
    names = user.tolist() if hasattr(user, "tolist") else list(user)
    if not names:
        raise _no_names(user)
    for place, name in enumerate(names):
        problem = _problem(_plain(name))
        if problem:
            raise ArgumentError(f"user[{place}] is {problem}; expected {_NAME}")
    return names


def _no_names(user: Any) -> ArgumentError:
    return refusal(
        "user",
        user,
        "a function that names the user of a record, or the names, one for each record",
        "For example: user=lambda record: record['author'].",
        with_type=True,
    )


def _listed(user: Any, records: int, special: int) -> list[Any]:
    names = _names_of(user)
    if len(names) != records - special:
        raise DataError(
            f"user has {len(names)} names, and the training dataset has {records - special} records; expected one for "
            "each record, in the order of the dataset."
        )
    return names


def _asked(user: Any, dataset: Any, record: int) -> Hashable:
    value: Any = None
    try:
        value = dataset[record]
        name = user(value)
    except Exception as error:
        # What it says may quote the record.
        raise DataError(
            f"user has failed for record {record} of the training dataset with a {type(error).__name__}; expected the "
            f"name of its user. It is given what dataset[{record}] returns, of type {type(value).__name__}."
        ) from error
    return _checked(name, record)


def _checked(name: Any, record: int) -> Hashable:
    """A name that is equal to itself, and to other names of the same user.

    A tensor, or any object that knows no equals, is hashable too: every record would be a user of its own.
    """
    found: Hashable = _plain(name)
    problem = _problem(found)
    if problem:
        raise DataError(f"user has given {problem} for record {record} of the training dataset; expected {_NAME}")
    return found


def _plain(name: Any) -> Any:
    """A name, or each part of one, without the tensor that one number is in."""
    if isinstance(name, Tensor | np.generic | np.ndarray) and math.prod(name.shape) == 1:
        return name.item()
    if isinstance(name, tuple):
        return tuple(map(_plain, name))
    return frozenset(map(_plain, name)) if isinstance(name, frozenset) else name


def _problem(name: Any) -> str:
    """Why something is no name: it is None, or could differ from that of another record of the same user.

    Empty if it is one.
    """
    return "None" if name is None else _difference(name)


def _difference(name: Any) -> str:
    kind = type(name).__name__
    if isinstance(name, str | bytes | int):
        return ""
    if isinstance(name, tuple | frozenset):
        return next((f"{found} in a {kind}" for found in map(_difference, name) if found), "")
    if isinstance(name, Tensor):
        return f"a Tensor of shape {tuple(name.shape)}"
    try:
        hash(name)
    except TypeError:
        return f"a {kind}, which cannot be hashed,"
    try:
        if name != name:
            return "nan"
    except Exception:  # what is missing in a table may not even say whether it is equal to itself
        return f"a {kind}, which cannot be compared,"
    if isinstance(name, type | Enum | NoneType):
        return ""
    if getattr(type(name), "__hash__", None) is object.__hash__ or not _equals_copy(name):
        return f"a {kind}, which is equal to nothing but itself,"
    return ""


def _equals_copy(name: Any) -> bool:
    """Whether a copy is the same name; not if an object has something within it that knows no equals, as a tensor."""
    try:
        other = copy.deepcopy(name)
    except Exception:  # whatever objects raise that cannot be copied
        return False
    return hash(other) == hash(name) and bool(other == name)
