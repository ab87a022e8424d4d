"""Does the randomness come from the operating system, if that was promised?

Nothing can be drawn again from it. What the generator has given out is remembered instead, in the steps that are looked
at closely, and must be what was added.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import STOPPED
from lightning_exposure.privacy.steps.proof._noise import AGAIN
from lightning_exposure.privacy.steps.secure import AnyGenerator, SecureGenerator

_NOT_SECURE = (
    "secure=True was asked for, but {what} from another generator than the operating system's. Something has replaced "
    f"it. {STOPPED}"
)


def check_secure(generator: object) -> None:
    """Refuse noise that does not come from the operating system.

    Raises:
        FitError: It comes from elsewhere.

    Example:
        >>> check_secure(SecureGenerator())
        >>> check_secure(torch.Generator())
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.FitError: secure=True was asked for, but the noise comes from another generator ...
    """
    if type(generator) is not SecureGenerator or generator.read is not os.urandom:
        raise FitError(_NOT_SECURE.format(what="the noise comes"))


def check_secure_draw(state: Tensor) -> None:
    """Refuse a batch that was drawn by a generator which has a state to draw it from again.

    Raises:
        FitError: It has one.
    """
    if state.numel() != 1:
        raise FitError(_NOT_SECURE.format(what="batches are drawn"))


def listen_to(generator: object) -> None:
    """Remember what a generator gives from now on, if it cannot be asked for it again."""
    if isinstance(generator, SecureGenerator):
        generator.keep(AGAIN + 1)


def as_before(generator: Any, state: Tensor, device: torch.device) -> AnyGenerator:
    """A generator that gives once more what another one has given since it was in some state.

    Args:
        generator: The other one.
        state: What its state was.
        device: Where its numbers are made.
    """
    if isinstance(generator, SecureGenerator):
        return _Remembered(generator.kept())
    found = torch.Generator(device)
    found.set_state(state)
    return found


class _Remembered(SecureGenerator):
    """Gives what another one has given, request by request."""

    def __init__(self, given: deque[NDArray[np.float64]]) -> None:
        super().__init__(read=bytes)
        self._rest = given

    def normal(self, count: int) -> NDArray[np.float64]:
        """What was given to the next request; nothing that fits, if that was another one."""
        given = self._rest.popleft() if self._rest else np.zeros(0)
        return given if len(given) == count else np.full(count, np.nan)
