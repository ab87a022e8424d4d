"""`run_study`: train what is not trained yet, and write the table, its summary and the figure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_exposure._checks import refusal, whole_number
from lightning_exposure._files import write_whole
from lightning_exposure.report.figures.style import MissingExtraError, save
from lightning_exposure.studies._directory import CellOutcome, StudyDirectory, manifest
from lightning_exposure.studies._tables import findings_of, summary_rows, table_rows, to_csv
from lightning_exposure.studies._work import StudyOrigin
from lightning_exposure.studies.catalogue import STUDIES
from lightning_exposure.studies.runners import RUNNERS
from lightning_exposure.studies.study import ERROR, Cell, Row, Study, Value

TABLE = "table.csv"
SUMMARY = "summary.csv"
FIGURE = "figure.png"


@dataclass(frozen=True)
class StudyProgress:
    """How far a study is.

    Attributes:
        done: How many cells are done, those of earlier runs included.
        total: How many there are.
        seconds_left: How long the rest will take, at the pace so far; None before there is one.
        cell: The cell that was done last; None at the beginning.
        outcome: What became of it.
    """

    done: int
    total: int
    seconds_left: float | None = None
    cell: Cell | None = None
    outcome: CellOutcome | None = None


@dataclass(frozen=True)
class StudyResult:
    """What a study leaves.

    Attributes:
        directory: Where its files are.
        rows: Of the table, in the order of the grid.
        summary: Its means over the seeds.
        findings: What else it shows, in sentences.
        failed: The rows of cells that failed.
        figure: The figure's path; None if there is none.
    """

    directory: Path
    rows: Sequence[Row]
    summary: Sequence[Row]
    findings: Sequence[str]
    failed: Sequence[Row]
    figure: Path | None


def run_study(
    name: str,
    directory: str | Path,
    *,
    scale: str = "cpu",
    seeds: int | None = None,
    text: str,
    runner: str = "local",
    workers: int = 1,
    watch: Callable[[StudyProgress], None] | None = None,
    **settings: Any,
) -> StudyResult:
    """Run a study, or go on with it: cells whose rows are in the directory are not trained again.

    Cells that failed are tried again. More `seeds` than before add cells to those that are there.

    Args:
        name: Of the study.
        directory: Where its files go; it is made if there is none.
        scale: "tiny", "cpu" or "paper".
        seeds: How many trainings with each settings; None: as many as the scale says.
        text: What is trained on.
        runner: "local" or "ray".
        workers: How many cells at a time; 0 with the runner "local": in this process.
        watch: Told after every cell.
        **settings: Of the runner.

    Raises:
        ArgumentError: An argument is wrong, the directory was begun with other settings, or another process is at
            work in it.
    """
    study = STUDIES.get(name, argument="NAME")
    run = RUNNERS.get(runner, argument="--runner")
    whole_number("--workers", workers, at_least=0 if runner == "local" else 1)
    cells = study.cells(name, scale, seeds, text)
    _refuse_other_text(scale, cells)
    content = manifest(name, scale, study.scale(scale).settings, text, study.columns)
    with StudyDirectory.opened(Path(directory), content) as kept:
        open_cells = [cell for cell in cells if cell.key not in kept.outcomes or kept.outcomes[cell.key].error]
        told = _Told(watch, len(cells), len(open_cells))
        by_key = {cell.key: cell for cell in open_cells}
        if open_cells:
            for outcome in run(StudyOrigin.of(name), open_cells, workers, **settings):
                kept.add(outcome)
                told.after(by_key[outcome.key], outcome)
        return _conclude(study, cells, kept)


def _refuse_other_text(scale: str, cells: Sequence[Cell]) -> None:
    """What takes days and stands beside the paper's numbers is not trained on a text that is too short for it."""
    wanted = max(cell.settings.get("characters", 0) for cell in cells)
    if scale == "paper" and len(cells[0].text) < wanted:
        expected = f"a text of {wanted:,} characters at least, as the paper's"
        raise refusal("--text", f"{len(cells[0].text):,} characters", expected, "Give the Penn Treebank.")


class _Told:
    """Tells somebody how far it is, and how long the rest will take."""

    def __init__(self, watch: Callable[[StudyProgress], None] | None, total: int, open_cells: int) -> None:
        self._watch, self._total, self._open = watch, total, open_cells
        self._done, self._began = 0, time.monotonic()
        if watch is not None:
            watch(StudyProgress(total - open_cells, total))

    def after(self, cell: Cell, outcome: CellOutcome) -> None:
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._open - self._done)
        if self._watch is not None:
            self._watch(StudyProgress(self._total - self._open + self._done, self._total, left, cell, outcome))


def _conclude(study: Study, cells: Sequence[Cell], kept: StudyDirectory) -> StudyResult:
    known = {key: (outcome.rows, outcome.error) for key, outcome in kept.outcomes.items()}
    rows = table_rows(study, cells, known)
    write_whole(kept.path / TABLE, to_csv(study.columns, rows))
    summary, figure = write_conclusions(study, rows, kept.path)
    failed = [row for row in rows if row.get(ERROR) is not None]
    return StudyResult(kept.path, rows, summary, findings_of(study, rows), failed, figure)


def write_conclusions(study: Study, rows: Sequence[Row], directory: Path) -> tuple[list[dict[str, Value]], Path | None]:
    """Make the summary and the figure from the table alone; returns the one, and where the other is."""
    summary = summary_rows(study, rows)
    names = list(dict.fromkeys(name for row in summary for name in row))
    write_whole(directory / SUMMARY, to_csv(names, summary))
    return summary, _draw(study, rows, summary, directory)


def _draw(study: Study, rows: Sequence[Row], summary: Sequence[Row], directory: Path) -> Path | None:
    """The figure, if there is anything to draw and something to draw it with."""
    fine = [row for row in rows if row.get(ERROR) is None]
    if study.draw is None or not fine:
        return None
    try:
        return save(study.draw(fine, summary), directory / FIGURE)
    except MissingExtraError:
        return None
