"""Does an adaptive clipping norm move by what was released, and was that released with noise?

The norm that examples are clipped to is worked out here once more, from the counts that were released and from nothing
else: so it shows if it is made of something that nobody released, such as the norms themselves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.adaptive import GRID, Tracking
from lightning_exposure.privacy.steps.proof._error import STOPPED, ErrorBudget, NormalTotals, is_time_to_look

COUNT_TESTS = {"counts": 2}
"""The tests of the released counts, and their shares of the error."""

_SAME = 1e-9
_ROUNDING = 1e-3
"""By which part the norm of an example may be off: what clipping itself allows for."""


class Bound:
    """What examples are clipped to: one norm, or one that follows the counts that are released.

    Its methods are called in this order for each batch: `begin`, `count` for each part of it, `end`.

    Args:
        norm: The first one.
        noise_multiplier: What the accountant is told.
        tracking: How it moves; None: it stays.
        budget: Of the error; it has a share for each of `COUNT_TESTS`, if the norm moves.
        luck: Draws the digits of counts that were rounded; private.

    Attributes:
        norm: The one in force.
        exact: The sum of b_i - 1/2 over the examples so far, of this process or of all.
    """

    def __init__(
        self,
        norm: float,
        noise_multiplier: float,
        tracking: Tracking | None,
        budget: ErrorBudget,
        luck: np.random.Generator,
    ) -> None:
        self.norm, self._told, self._tracking = norm, noise_multiplier, tracking
        self._budget, self._luck = budget, luck
        self.exact = 0.0
        self._noise, self._steps = NormalTotals(), 0

    @property
    def deviation(self) -> float:
        """The standard deviation that the noise of the gradient has."""
        if self._tracking is None or not self._told:
            return self._told * self.norm
        # Not as the training has worked it out: what is left of 1/z^2 when the count has had its share.
        return self.norm / math.sqrt(self._told**-2 - (2 * self._tracking.count_noise) ** -2)

    def begin(self, optimizer: Any) -> None:
        """A batch begins.

        Raises:
            FitError: Its examples are going to be clipped to something else.
        """
        self.exact = 0.0
        if self._tracking is not None:
            self._compare(optimizer)

    def count(self, norms: Tensor, within: Tensor, examples: int) -> None:
        """The examples of a part of the batch were clipped.

        Args:
            norms: Of their gradients.
            within: What is counted of each.
            examples: How many there are.

        Raises:
            FitError: Something else was counted than those within the norm.
        """
        if self._tracking is None or not examples:
            return
        least, most = (int((norms <= self.norm * (1 + side * _ROUNDING)).sum()) for side in (-1, 1))
        whole = bool(((within == 0) | (within == 1)).all()) and len(within) == examples
        counted = float(within.double().sum())
        if not whole or not least <= counted <= most:
            raise FitError(
                f"{_NOT_RELEASED} {counted:g} of {examples} examples were counted, and {least} to {most} were within "
                f"the norm. {STOPPED}"
            )
        self.exact += counted - examples / 2

    def end(self, optimizer: Any, again: float | None) -> None:
        """The count was released, and the norm has moved.

        Args:
            optimizer: The private one.
            again: The noise of the count in units of its deviation, drawn again; None if nobody can.

        Raises:
            FitError: The count has other noise, or the norm has moved by something else.
        """
        tracking = self._tracking
        if tracking is None:
            return
        released: float = optimizer.followed.count
        noise, deviation = released - self.exact, tracking.count_noise
        if again is not None and not abs(noise - deviation * again) <= GRID:
            raise FitError(
                f"{_NOT_RELEASED} its noise is {noise:.4g}, and {deviation * again:.4g} if it is drawn again from the "
                f"private generator. {STOPPED}"
            )
        if deviation > 1e3 * GRID:
            self._noise.add((noise + (self._luck.random() - 0.5) * GRID) / deviation)
        elif abs(noise) > 40 * deviation + GRID:
            raise FitError(f"{_NOT_RELEASED} its noise is {noise:.4g}; expected {deviation:.4g} or so. {STOPPED}")
        self._steps += 1
        if is_time_to_look(self._steps):
            self.look()
        self.norm = tracking.next_norm(self.norm, released)
        self._compare(optimizer)
        # The very one: the last bits are not to add up.
        self.norm = optimizer.followed.norm

    def look(self) -> None:
        """Look at the noise of all counts so far; also after the last one.

        Raises:
            FitError: It is not the noise that was asked for.
        """
        if self._tracking is None or not self._steps:
            return
        if not self._noise.probability() > self._budget.next_share("counts"):
            raise FitError(
                f"{_NOT_RELEASED} over {self._steps} steps its noise is something else than normal numbers with a "
                f"standard deviation of count_noise = {self._tracking.count_noise:.4g}. {STOPPED}"
            )

    def _compare(self, optimizer: Any) -> None:
        used = (optimizer.followed.norm, optimizer.max_grad_norm, optimizer.clipping.max_grad_norm)
        wrong = [norm for norm in used if not abs(norm - self.norm) <= _SAME * self.norm]
        if wrong:
            raise FitError(
                f"The clipping norm is {wrong[0]:.6g}; expected {self.norm:.6g}, to which the counts have led that "
                f"were released with noise. Something else moves it, which no noise hides. {STOPPED}"
            )


_NOT_RELEASED = "The count of examples within the clipping norm is not released as it should be:"
