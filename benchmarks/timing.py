"""How long something takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

First = TypeVar("First")
Second = TypeVar("Second")


def best_of(repeats: int, function: Callable[[], First]) -> tuple[First, float]:
    """What a function returns, and the seconds of its fastest run.

    The fastest, because whatever else the machine does can only slow a run down.
    """
    result, _, seconds, _ = best_of_both(repeats, function, lambda: None)
    return result, seconds


def best_of_both(
    repeats: int, first: Callable[[], First], second: Callable[[], Second]
) -> tuple[First, Second, float, float]:
    """What two functions return, and the seconds of the fastest run of each.

    They run in turn, so that a time in which the machine is busy meets both.
    """
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        of_first = first()
        between = time.perf_counter()
        of_second = second()
        seconds.append((between - begin, time.perf_counter() - between))
    return of_first, of_second, min(pair[0] for pair in seconds), min(pair[1] for pair in seconds)
