"""Large tensors in the memory of the CPU that come from the system directly and go back to it at once.

A walk makes and drops states of many megabytes all the time. From the C library's heap they leave holes that nothing
else fits in, so that a process grows well beyond what its tensors take. Taken from the system in ordinary pages of
4 KiB, touching them for the first time costs more than filling them; in huge pages it does not.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

_LARGE = 2**22
"""From this many bytes on: a few huge pages of 2 MiB, of which half of the last one is unused on average."""


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
    # Only Linux has both; elsewhere the heap has to do.
    if like.device.type != "cpu" or size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(shape)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)
