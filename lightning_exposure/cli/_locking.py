"""One process at a time writes a run's directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning_exposure.errors import ArgumentError

LOCK = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a run's directory to this process.

    The lock is the operating system's: whatever ends the process, also a kill, frees it. The file stays behind, and
    means nothing by itself.

    Raises:
        ArgumentError: Another process has it.
    """
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            _take(file)
        except OSError as error:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip() if hasattr(os, "pread") else ""
            raise ArgumentError(
                f"--run_dir is {str(directory)!r}, in which another process{f' ({holder})' if holder else ''} is "
                "training; expected a directory that nobody writes to. Wait for it, or choose another directory."
            ) from error
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(file)  # which frees the lock


def _take(file: int) -> None:
    """Lock a file for this process alone, and not for those that it forks; OSError if another has it."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
