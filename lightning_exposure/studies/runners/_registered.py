"""The registry of runners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from lightning_exposure._registry import Registry
from lightning_exposure.studies._directory import CellOutcome
from lightning_exposure.studies._work import StudyOrigin
from lightning_exposure.studies.study import Cell


class Runner(Protocol):
    """Trains cells, several at a time, and hands over what became of each as soon as it is known."""

    def __call__(
        self, origin: StudyOrigin, cells: Sequence[Cell], workers: int, **settings: Any
    ) -> Iterator[CellOutcome]:
        """Train.

        Args:
            origin: Where the study is found by another process.
            cells: What to train, all on the same text.
            workers: How many at a time.
            **settings: Of the runner itself.
        """


RUNNERS: Registry[Runner] = Registry("runner")
"""Every runner, by its name."""
