"""A measurement leaves no trace in a training run."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


class _TrainingClock:
    """Stands still while something is measured, by whichever callback."""

    def __init__(self) -> None:
        self._inside = 0
        self._stopped_at = 0.0
        self._stood_still = 0.0

    def __call__(self) -> float:
        """Seconds from some moment on."""
        return (self._stopped_at if self._inside else time.perf_counter()) - self._stood_still

    def stop(self) -> None:
        """A measurement begins; another may be under way."""
        if not self._inside:
            self._stopped_at = time.perf_counter()
        self._inside += 1

    def go_on(self) -> None:
        """It has ended."""
        self._inside -= 1
        if not self._inside:
            self._stood_still += time.perf_counter() - self._stopped_at


_CLOCK = _TrainingClock()


def training_clock() -> float:
    """Seconds of training in this process, from some moment on; measurements are not counted."""
    return _CLOCK()


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, afterwards modes, random states and grad mode are as they were.

    The walks draw from generators of their own and put the module in eval mode themselves. This guards against the
    rest: a forward of the user's that draws random numbers even in eval mode, and an exception half way. What a forward
    writes on the module itself (a buffer, a hidden state kept as an attribute) is not undone.

    Args:
        model: The module that is being trained.
    """
    modes = [(part, part.training) for part in model.modules()]
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    accelerators = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    grad = torch.is_grad_enabled()
    _CLOCK.stop()
    try:
        with torch.no_grad():
            model.eval()
            yield
    finally:
        for part, training in modes:
            part.training = training
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if accelerators is not None:
            torch.cuda.set_rng_state_all(accelerators)
        torch.set_grad_enabled(grad)
        _CLOCK.go_on()
