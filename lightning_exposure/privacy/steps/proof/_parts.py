"""Is the sum of a step that of all parts of its batch, each of them once?"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import STOPPED

_ROUNDING = 1e-3


class PartSums:
    """Some numbers of the clipped sums of the parts of a batch, added up beside the step itself.

    Example:
        >>> parts = PartSums()
        >>> parts.add(torch.tensor([1.0, 2.0]), 3)
        >>> parts.add(torch.tensor([0.5, 0.0]), 2)
        >>> parts.check(torch.tensor([1.5, 2.0]), 5)
        >>> parts.check(torch.tensor([1.0, 2.0]), 5)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.FitError: The sum of a step is another one than that of the 2 parts of its batch. ...
    """

    def __init__(self) -> None:
        self._total = torch.zeros(0, dtype=torch.float64)
        self._sizes = torch.zeros(0, dtype=torch.float64)  # of the numbers, without their signs
        self._parts = self._examples = 0

    def add(self, numbers: Tensor, examples: int) -> None:
        """Take a part.

        Args:
            numbers: Of its clipped sum.
            examples: How many it had.
        """
        first = not self._parts
        self._total = numbers if first else self._total + numbers
        self._sizes = numbers.abs() if first else self._sizes + numbers.abs()
        self._parts += 1
        self._examples += examples

    def check(self, numbers: Tensor, examples: int) -> None:
        """Refuse another sum, or one of other examples.

        Args:
            numbers: Of the sum of the step, before the noise.
            examples: How many the batch has.

        Raises:
            FitError: A part was left out, taken twice, or something was added to it.
        """
        if self._examples != examples:
            raise FitError(f"A batch of {examples} examples was clipped as {self._examples}. {STOPPED}")
        # A number that two parts nearly cancel is as exact as the largest among them.
        allowed = _ROUNDING * (self._sizes + self._sizes.max()) if len(self._sizes) else self._sizes
        if not bool(((self._total - numbers).abs() <= allowed).all()):
            raise FitError(
                f"The sum of a step is another one than that of the {self._parts} parts of its batch. {STOPPED}"
            )
