"""Random numbers for a function of the user's, from a seed of our own and without a trace in those of the training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Whatever draws from a global generator inside draws the same every time; afterwards all are as they were.

    Args:
        seed: Of all of them.

    Example:
        >>> with seeded(1):
        ...     first = random.random()
        >>> with seeded(1):
        ...     first == random.random()
        True
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
