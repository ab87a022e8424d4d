"""The registry of scorers, and what a scorer is.

A scorer sees the texts of a release and strings that it is asked about. It does not see which of them were in the
training data, nor which are canaries at all: whatever it computes, the bound of the audit holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._registry import Registry

Floats = NDArray[np.float64]


class AskedSecret(NamedTuple):
    """A string that a scorer is asked about.

    Attributes:
        text: The secret with its prompt.
        start: How long the prompt is.
    """

    text: str
    start: int


class ReleaseScorer(Protocol):
    """Anything that gives a number for every secret; higher ones speak for having been in the training data."""

    def __call__(self, texts: Sequence[str], asked: Sequence[AskedSecret], *, seed: int) -> Floats:
        """The scores, in the order of what is asked.

        Args:
            texts: The release.
            asked: Canaries, in and out, and other secrets of their formats.
            seed: Of all random numbers.
        """
        ...


SCORERS: Registry[ReleaseScorer] = Registry("scorer")
"""The scorers that `audit_synthetic` knows by name."""
