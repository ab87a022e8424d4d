"""The peak of a process's resident memory, for one function alone: it runs in a fresh process.

A process's peak never falls, so in one that has trained a model already it would say nothing about what comes after.
"""

from __future__ import annotations

import multiprocessing
import pickle
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.table import Row, Target

GIB = 2**30
LIMIT = Target("below", 1.5)


@dataclass(frozen=True)
class PeakMemory:
    """Peaks in bytes: of the fresh process with all libraries loaded, and after the function has run in it."""

    before: int
    after: int


def peak_memory_of(function: Callable[..., object], *arguments: object) -> PeakMemory:
    """Run a function in a fresh process, and read the peak there.

    Args:
        function: A function of a module, whose result is dropped.
        *arguments: What it is called with; copied to the other process.
    """
    # As bytes, because multiprocessing would hand tensors over in shared memory, which would not be counted alike.
    call = pickle.dumps((function, arguments))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh_process:
        return fresh_process.submit(_run, call).result()


def memory_row(what: str, peak: PeakMemory) -> Row:
    """The row of the table about it."""
    beside = f"a fresh process; {peak.before / GIB:.3f} GiB of it before the walk began"
    return Row(f"{what}: peak resident memory", peak.after / GIB, "GiB", LIMIT, beside)


def _run(call: bytes) -> PeakMemory:
    function: Callable[..., object]
    arguments: tuple[Any, ...]
    function, arguments = pickle.loads(call)
    before = _peak_resident_bytes()
    function(*arguments)
    return PeakMemory(before, _peak_resident_bytes())


def _peak_resident_bytes() -> int:
    """The peak of this process so far (Linux and macOS)."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux a new process inherits the peak of the one that started it.
        match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if match:
            return int(match[1]) * 1024
    import resource  # not on Windows, where the other benchmarks still run

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
