"""What a page may change, and what is put back behind it."""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """In a directory of its own; environment, random numbers and levels of loggers are afterwards as before."""
    python, numbers = random.getstate(), numpy.random.get_state()
    loggers = {name: logging.getLogger(name).level for name in ("lightning", "lightning.pytorch", "transformers")}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(os.environ), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # Lightning's hints about speed: pages train tiny models.
            warnings.simplefilter("ignore", PossibleUserWarning)
            yield
    finally:
        os.chdir(before)
        random.setstate(python)
        numpy.random.set_state(numbers)
        for name, level in loggers.items():
            logging.getLogger(name).setLevel(level)
