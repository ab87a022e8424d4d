"""When to run a part of a batch again: at the first steps and at random later ones, for little of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof.mixing import MixingProbe
from lightning_exposure.privacy.steps.proof.reruns._collating import Make, check_collate, check_order
from lightning_exposure.privacy.steps.proof.reruns.undoing import unnoticed
from lightning_exposure.privacy.users.grouping import units_of

SHARE = 0.1
"""Which part of the examples is run again, at most, after the first time."""
_OFTEN = 0.25


class Probes:
    """Decides which batches are looked at, and says what could not be.

    Args:
        probe: Looks at a batch; None: nothing is looked at.
        luck: Decides; private.
        verify: How many batches are looked at, at first, if that is not too much.
        say: Is told what could not be looked at, once.

    Attributes:
        notes: The same.
    """

    def __init__(
        self, probe: MixingProbe, luck: np.random.Generator, *, verify: int, say: Callable[[str], None]
    ) -> None:
        self._probe, self._luck, self._say = probe, luck, say
        self._first = verify
        self._done = self._trained = 0
        self._again = False
        self._collated = False
        self.notes: list[str] = []

    def begin(self, batch: Any, examples: int) -> None:
        """Look at a batch before it is trained on, or not.

        Raises:
            MixingError: Its examples mix.
            FitError: They are not clipped.
        """
        self._trained += examples
        self._again = False
        if units_of(examples) < 2 or not self._wants(examples):
            return
        try:
            self._look(batch, examples)
        except FitError:
            raise
        except Exception:
            # What fails by itself will do so in the step itself; and what needs a hook before it, after the step.
            self._again = True

    def end(self, batch: Any, examples: int) -> None:
        """Look at it after the step, if that was not possible before.

        Raises:
            MixingError: Its examples mix.
            FitError: They are not clipped.
        """
        if not self._again:
            return
        self._again = False
        try:
            self._look(batch, examples)
        except FitError:
            raise
        except Exception as problem:
            self._done += 1
            self._note(f"a training step could not be run again ({type(problem).__name__}: {problem})")

    def collate(
        self, make: Make | None, read: Callable[[], Sequence[Any]], state: Any, *, in_order: bool = False
    ) -> None:
        """Look at how batches are made of records, once.

        Args:
            make: Makes a batch of records; None: as PyTorch does, which mixes nothing.
            read: Gives some records.
            state: What may have a state: the function that makes batches.
            in_order: Whether records have to stay where they are, because their places tell whose they are.

        Raises:
            MixingError: Records are mixed, or moved.
        """
        if self._collated or not self._first:
            return
        self._collated = True
        if make is None:
            return
        try:
            with unnoticed(state):
                records = read()
            problem = check_collate(make, records, self._luck, state=state)
            if in_order and problem is None:
                problem = check_order(make, records, self._luck, state=state)
        except FitError:
            raise
        except Exception as error:
            problem = f"records could not be put together again ({type(error).__name__}: {error})"
        if problem is not None:
            self._note(problem)

    def finish(self) -> None:
        """Say so if there was never a batch to look at."""
        if not self._done and self._trained and self._first:
            self._note("no batch had two examples that could be compared")

    def _wants(self, examples: int) -> bool:
        if not self._first:
            return False
        if not self._done:
            return True
        affordable = self._affords(self._probe.cost(examples))
        return affordable and (self._done < self._first or self._luck.random() < _OFTEN)

    def _affords(self, cost: int) -> bool:
        return self._probe.rows + cost <= SHARE * self._trained

    def _look(self, batch: Any, examples: int) -> None:
        # What only many examples do to each other shows among as many; at first, and whenever there is time for it.
        whole = not self._done or self._affords(self._probe.cost(examples, whole=True))
        try:
            problem = self._probe.check(batch, examples, whole=whole)
        finally:
            if not self._done:
                self._probe.rows = 0
        self._done += 1
        if problem is not None:
            self._note(problem)

    def _note(self, problem: str) -> None:
        if problem not in self.notes:
            self.notes.append(problem)
            self._say(
                f"Whether examples mix could not be seen everywhere: {problem}. Epsilon holds only if they do not."
            )
