"""Were the batches drawn by Poisson sampling, at the rate that the accountant was told?

Every record is in a batch by a coin of its own. So the size of a batch is binomial, how many of the last one are in it
again is too, and how often a record was in one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import (
    STOPPED,
    ErrorBudget,
    NormalTotals,
    as_normal,
    is_time_to_look,
    of_counts,
)

BATCH_TESTS = {"batch sizes": 1, "spread of batch sizes": 1, "batches alike": 1, "records": 1}
"""The tests of the batches, and their shares of the error."""


class BatchTests:
    """Gathers which records were in the batches of one process, and refuses what is not Poisson sampling.

    Args:
        records: How many records this process draws from.
        budget: Of the error; it has a share for each of `BATCH_TESTS`.
        luck: Draws a place within the probability of a whole number; private.
    """

    def __init__(self, records: int, budget: ErrorBudget, luck: np.random.Generator) -> None:
        self._records = records
        self._budget, self._luck = budget, luck
        self.steps = 0
        self._sizes, self._alike = NormalTotals(), NormalTotals()
        self._rate = 0.0
        self._drawn = 0
        self._often = np.zeros(records, dtype=np.int64)
        self._last: set[int] = set()

    def add(self, batch: Sequence[int], sample_rate: float) -> None:
        """Look at a batch.

        Args:
            batch: Which records are in it, by their numbers in this process.
            sample_rate: The rate that the accountant was told.

        Raises:
            FitError: The batches are not drawn by Poisson sampling at that rate.
        """
        members = set(batch)
        if len(members) != len(batch):
            raise FitError(f"{_NOT_POISSON} a record is in the same batch more than once. {STOPPED}")
        if self.steps and sample_rate != self._rate:
            self._often[:] = 0
            self.steps, self._sizes, self._alike, self._drawn = 0, NormalTotals(), NormalTotals(), 0
        self._rate = sample_rate
        if 0 < sample_rate < 1:
            self._sizes.add(as_normal(len(batch), self._records, sample_rate, self._luck.random()))
            if self.steps and self._last:
                again = len(members & self._last)
                self._alike.add(as_normal(again, len(self._last), sample_rate, self._luck.random()))
        self.steps += 1
        self._drawn += len(batch)
        self._often[list(batch)] += 1
        self._last = members
        if is_time_to_look(self.steps):
            self.look()

    def look(self) -> None:
        """Look at all batches so far; also after the last one.

        Raises:
            FitError: The batches are not drawn by Poisson sampling at the rate that was told.
        """
        if not self.steps:
            return
        if self._rate >= 1:
            if self._drawn != self.steps * self._records:
                raise FitError(f"{_NOT_POISSON} records are left out, at a sample rate of 1. {STOPPED}")
            return
        mean, expected = self._drawn / self.steps, self._records * self._rate
        over = f"over {self.steps} batches"
        found = [
            (
                "batch sizes",
                self._of_sizes(),
                f"{over} there are {mean:.4g} records in a batch; expected sample_rate * records = {expected:.4g}.",
            ),
            ("spread of batch sizes", self._sizes.probability(), f"{over} their sizes vary too little or too much."),
            ("batches alike", self._alike.probability(), f"{over} they have too many, or too few, records in common."),
            ("records", self._of_records(), f"{over} a record was in too many of them, or in too few."),
        ]
        for test, probability, problem in found:
            if not probability > self._budget.next_share(test):
                raise FitError(f"{_NOT_POISSON} {problem} {STOPPED}")

    def _of_sizes(self) -> float:
        return of_counts(np.array([self._drawn]), self.steps * self._records, np.array([self._rate]))

    def _of_records(self) -> float:
        ends = np.array([self._often.min(), self._often.max()])
        # Of all records, the one that was in the fewest batches and the one that was in the most.
        return min(1.0, of_counts(ends, self.steps, np.full(2, self._rate)) * self._records / 2)


def check_draw(batch: Sequence[int], state: torch.Tensor, *, records: int, sample_rate: float) -> None:
    """Toss the coins of a batch again, and refuse a batch that they do not give.

    Args:
        batch: Which records are in it.
        state: Of the private generator, before it was drawn.
        records: How many there are to draw from.
        sample_rate: The rate that the accountant was told.

    Raises:
        FitError: It is another one.

    Example:
        >>> state = torch.Generator().manual_seed(7).get_state()
        >>> check_draw([1, 2], state, records=3, sample_rate=1.0)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.FitError: The batches are not drawn by Poisson sampling: the coins of the private
        generator give a batch of 3 records; this one has 2, or others. ...
    """
    generator = torch.Generator()
    generator.set_state(state)
    coins = torch.rand(records, generator=generator, dtype=torch.float64)
    expected = (coins < sample_rate).nonzero().flatten().tolist()
    if sorted(batch) != expected:
        raise FitError(
            f"{_NOT_POISSON} the coins of the private generator give a batch of {len(expected)} records; this one has "
            f"{len(batch)}, or others. {STOPPED}"
        )


_NOT_POISSON = "The batches are not drawn by Poisson sampling:"
