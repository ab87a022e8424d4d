"""Large tensors in the memory of the CPU, taken from the system directly.

A walk makes and drops states of many megabytes all the time. From the C library's heap they leave holes that nothing
else fits in, so that a process grows well beyond what its tensors take. Taken from the system they are given back at
once. But fresh memory must be cleared by the system before it is used, which costs more than filling it: so it comes
in huge pages, which is quicker, and a little of what is no longer needed is kept for the next tensor.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from contextlib import suppress

import torch
from torch import Tensor

_LARGE = 2**22
"""From this many bytes on: two huge pages."""
_KEPT = 2**26
"""How many bytes are kept at most that no tensor uses."""


def empty(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor with the type and device of another one.

    Args:
        like: The other one.
        *shape: Of the new tensor.

    Example:
        >>> empty(torch.zeros(1, dtype=torch.float64), 1024, 1024).dtype
        torch.float64
    """
    size = math.prod(shape) * like.element_size()
    # Only Linux has huge pages in this way; elsewhere the heap has to do.
    if like.device.type != "cpu" or size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(shape)
    memory = _UNUSED.take(size)
    view = memoryview(memory)
    weakref.finalize(view, _UNUSED.put, memory).atexit = False  # the tensor keeps the view alive, and nothing else does
    return torch.frombuffer(view, dtype=like.dtype, count=math.prod(shape)).view(shape)


class _Unused:
    """Memory that no tensor uses at the moment, the newest last."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []
        self._lock = threading.RLock()  # a tensor may be dropped anywhere, also in here

    def take(self, size: int) -> mmap.mmap:
        """Memory of at least this size, and not of much more."""
        with self._lock:
            for i in range(len(self._kept) - 1, -1, -1):
                if size <= len(self._kept[i]) <= 1.25 * size:
                    return self._kept.pop(i)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a system built without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def put(self, memory: mmap.mmap) -> None:
        """Keep memory that a tensor used, and give back the oldest beyond the limit."""
        with self._lock:
            self._kept.append(memory)
            while sum(map(len, self._kept)) > _KEPT:
                self._kept.pop(0)


_UNUSED = _Unused()
