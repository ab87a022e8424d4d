"""Batches in parts: a Poisson batch can be of any size, and memory holds no more than a part of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from lightning_exposure.privacy.users.grouping import Grouped, groups_of


class Continued(list[int]):
    """The numbers of the records of a part that goes on with the batch of the part before it."""


def part_sizes(examples: int, most: int | None) -> list[int]:
    """How many examples the parts of a batch have: as few parts as possible, and as equal as possible.

    If they belong to users, no user is split: a part is full when the next user does not fit into it any more.

    Args:
        examples: How many the batch has; one part without any, if there are none.
        most: How many a part has at most; None: there is one part.

    Example:
        >>> part_sizes(10, 4), part_sizes(4, 4), part_sizes(0, 4), part_sizes(10, None)
        ([4, 3, 3], [4], [0], [10])
        >>> [part.groups for part in part_sizes(Grouped([2, 3, 1, 4]), 4)]
        [(2,), (3, 1), (4,)]
    """
    groups = groups_of(examples)
    if groups is not None:
        return [examples] if most is None else _whole_users(groups, most)
    count = 1 if most is None else max(1, -(-examples // most))
    less, more = divmod(examples, count)
    return [less + 1] * more + [less] * (count - more)


def _whole_users(groups: Sequence[int], most: int) -> list[int]:
    parts: list[list[int]] = [[]]
    for group in groups:
        if parts[-1] and sum(parts[-1]) + group > most:
            parts.append([])
        parts[-1].append(group)
    return [Grouped(part) for part in parts]


def parts_of(records: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of the records of each part, in their order.

    >>> list(parts_of([5, 6, 9], [2, 1]))
    [[5, 6], [9]]
    """
    begin = 0
    for size in sizes:
        yield (Continued if begin else list)(records[begin : begin + size])
        begin += size


class Rest:
    """The parts of one batch that follow its first, read only when they are needed.

    Args:
        parts: Gives the parts of all batches, one after the other; the first of this batch was taken already.
        sizes: How many examples the parts of this batch have, the first included.

    Attributes:
        sizes: As given.

    Example:
        >>> parts = iter(["second", "third", "first of the next"])
        >>> list(Rest(parts, [4, 3, 3])), next(parts)
        ([('second', 3), ('third', 3)], 'first of the next')
    """

    def __init__(self, parts: Iterator[Any], sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self._parts = parts
        self._missing = deque(self.sizes[1:])
        self._fetched: deque[tuple[Any, int]] = deque()

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Each part, and how many examples it has."""
        while self._fetched or self._missing:
            yield self._fetched.popleft() if self._fetched else self._next()

    def fetch(self) -> None:
        """Read what is left now: somebody asks for the next batch before this one is done."""
        while self._missing:
            self._fetched.append(self._next())

    def _next(self) -> tuple[Any, int]:
        size = self._missing.popleft()
        return next(self._parts), size
