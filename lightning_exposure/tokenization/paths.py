"""Token paths as rows of an array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

FILLING = -1
"""Stands behind the end of a path that is shorter than its array is wide."""

# Odd multipliers from a seed of their own, so that no caller's randomness is touched.
_MULTIPLIERS = np.random.default_rng(20190814).integers(1, 2**63, size=4096, dtype=np.uint64) * np.uint64(
    2
) + np.uint64(1)


def as_rows(paths: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Paths as rows of one array, shorter ones filled up.

    Example:
        >>> as_rows([[3, 1], [4]]).tolist()
        [[3, 1], [4, -1]]
    """
    width = max(map(len, paths), default=0)
    if min(map(len, paths), default=0) == width:  # nothing to fill: much faster
        return np.fromiter(chain.from_iterable(paths), np.int32, len(paths) * width).reshape(len(paths), width)
    rows = np.full((len(paths), width), FILLING, dtype=np.int32)
    for row, path in zip(rows, paths, strict=True):
        row[: len(path)] = path
    return rows


def stack_rows(parts: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Several arrays of paths as one, as wide as the widest."""
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=FILLING) for part in parts]
    )


def tokens_of(row: NDArray[np.int32]) -> list[int]:
    """The tokens of one path, without filling."""
    tokens: list[int] = row[row != FILLING].tolist()
    return tokens


def path_keys(paths: NDArray[np.int32]) -> NDArray[np.uint64]:
    """A number for each path: equal for equal paths, hardly ever for others, whatever the filling."""
    columns = _MULTIPLIERS[np.arange(paths.shape[1]) % len(_MULTIPLIERS)]
    keys: NDArray[np.uint64] = ((paths.astype(np.int64) + 1).astype(np.uint64) * columns).sum(axis=1, dtype=np.uint64)
    return keys


class PathFinder:
    """Finds given paths among many: by path and not by cost, which would be at the mercy of rounding.

    Args:
        paths: The paths to look for, all different, one row each.
    """

    def __init__(self, paths: NDArray[np.int32]) -> None:
        self._numbers = {tuple(tokens_of(row)): i for i, row in enumerate(paths)}
        self._keys = path_keys(paths)

    def find(self, rows: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
        """Pairs of (number of the given path, row where it stands)."""
        for row in np.flatnonzero(np.isin(path_keys(rows), self._keys)):
            number = self._numbers.get(tuple(tokens_of(rows[row])))
            if number is not None:
                yield number, int(row)
