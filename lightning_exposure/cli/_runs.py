"""The directory of a run: what its files are called, and where a new one goes."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from lightning_exposure.errors import ArgumentError

CHECKPOINT = "model.ckpt"
RESUME = "resume.ckpt"
CANARIES = "canaries.json"
AUDIT_CANARIES = "audit-canaries.json"
TOKENIZER = "tokenizer.json"
CONFIG = "config.yaml"


def new_run_dir(given: str | os.PathLike[str] | None) -> Path:
    """Where a run will leave its files; nothing is created yet.

    Raises:
        ArgumentError: There is something already.
    """
    path = Path("runs", f"{datetime.now():%Y%m%d-%H%M%S}") if given is None else Path(given)
    # A process that another one of the same run started finds the directory made.
    if "LOCAL_RANK" not in os.environ and path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise not_new(path)
    return path


def not_new(path: Path) -> ArgumentError:
    """The error for a directory that has something in it already."""
    hint = f", or go on with it: --resume {path}" if (path / RESUME).exists() else ""
    return ArgumentError(
        f"--run_dir is {str(path)!r}, which exists already; expected a new directory, because a run is never "
        f"overwritten. Choose another one{hint}."
    )
