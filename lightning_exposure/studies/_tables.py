"""Tables of numbers: written with the same bytes whoever computed them first, and averaged over the seeds."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path

import numpy as np
from scipy import stats

from lightning_exposure.exposure.intervals import clustered_interval, proportion_interval
from lightning_exposure.studies.study import ERROR, Cell, Column, Row, Study, Value

CONFIDENCE = 0.95


# ---- files ------------------------------------------------------------------------------------------------------


def cell_text(value: Value) -> str:
    """A value as CSV files have it: floats with nine digits, nothing for None.

    >>> cell_text(1 / 3), cell_text(True), cell_text(None), cell_text(20)
    ('0.333333333', 'yes', '', '20')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def cell_value(text: str) -> Value:
    """What `cell_text` wrote, as a value again.

    >>> cell_value("0.5"), cell_value("yes"), cell_value(""), cell_value("20"), cell_value("lstm")
    (0.5, True, None, 20, 'lstm')
    """
    if text in ("", "yes", "no"):
        return {"": None, "yes": True, "no": False}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def to_csv(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Rows under their headings."""
    content = StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell_text(row.get(column)) for column in columns] for row in rows)
    return content.getvalue()


def read_csv(path: Path) -> list[dict[str, Value]]:
    """The rows of a file that `to_csv` made."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: cell_value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def table_rows(
    study: Study, cells: Sequence[Cell], results: Mapping[str, tuple[Sequence[Row], str | None]]
) -> list[Row]:
    """Every row of every cell in the order of the grid; of a cell that failed, one that says why."""
    rows: list[Row] = []
    for cell in cells:
        found, error = results[cell.key]
        place = {name: _shown(cell.settings.get(name)) for name in study.factors} | {"seed": cell.seed}
        rows += [{**place, ERROR: error}] if error is not None else [{**place, **row} for row in found]
    # As they will be read from the file: its summary can be made again from it alone.
    return [{name: cell_value(cell_text(value)) for name, value in row.items()} for row in rows]


def _shown(value: object) -> Value:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


# ---- averages ---------------------------------------------------------------------------------------------------


def t_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Student's interval for the mean; None for fewer than two values, which say nothing of their spread.

    >>> t_interval([1.0, 2.0, 3.0])
    (-0.484..., 4.484...)
    """
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.5 + confidence / 2, len(values) - 1)) * error
    middle = float(np.mean(values))
    return middle - half, middle + half


def summary_of(column: Column, rows: Sequence[Row]) -> dict[str, Value]:
    """The mean or the share of a column, with its interval in two more columns; cells without a value do not count."""
    rows = [row for row in rows if isinstance(row.get(column.name), int | float)]
    known = _numbers(rows, column.name)
    names = [column.name] if column.over_seeds == "median" else [column.name + end for end in ("", "_low", "_high")]
    if not known:
        return dict.fromkeys(names)
    if column.over_seeds == "median":
        found: tuple[Value, ...] = (float(np.median(known)),)
    elif column.over_seeds == "share":
        found = _share(known, None if column.share_of is None else _numbers(rows, column.share_of))
    else:
        least = -math.inf if column.least is None else column.least
        most = max(_numbers(rows, column.most), default=None) if isinstance(column.most, str) else column.most
        interval = t_interval(known)
        ends = interval and np.clip(interval, least, math.inf if most is None else most).tolist()
        found = (float(np.mean(known)), *(ends or (None, None)))
    return dict(zip(names, found, strict=True))


def _share(known: Sequence[float], sizes: Sequence[float] | None) -> tuple[float, float, float]:
    """What part of all trainings; or, of trainings with so many secrets each, what part of all secrets."""
    if sizes is None:
        return sum(known) / len(known), *proportion_interval(sum(known), len(known), CONFIDENCE)
    return float(np.average(known, weights=sizes)), *clustered_interval(known, sizes, CONFIDENCE)


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    return [float(value) for row in rows if isinstance(value := row.get(name), int | float)]


def over_seeds(study: Study, rows: Sequence[Row], keys: Sequence[str] | None = None) -> list[dict[str, Value]]:
    """For each place in the grid the means over its seeds, in the order of the table.

    Args:
        study: Says which columns, and how each is summarized.
        rows: Of the trainings that did not fail.
        keys: What tells groups apart; None: the factors and keys of the study.
    """
    names = (*study.factors, *study.keys) if keys is None else tuple(keys)
    groups: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in names), []).append(row)
    summary = []
    for group, members in groups.items():
        line: dict[str, Value] = {**dict(zip(names, group, strict=True)), "trainings": len(members)}
        for column in study.results:
            if column.over_seeds != "leave out":
                line |= summary_of(column, members)
        summary.append(line)
    return summary


def summary_rows(study: Study, rows: Sequence[Row]) -> list[dict[str, Value]]:
    """The summary of a table, as the study wants it."""
    fine = [row for row in rows if row.get(ERROR) is None]
    return (study.summarize or over_seeds)(study, fine)


def findings_of(study: Study, rows: Sequence[Row]) -> list[str]:
    """What the rows of a table show besides its summary; nothing if every training failed."""
    fine = [row for row in rows if row.get(ERROR) is None]
    return study.findings(fine) if study.findings is not None and fine else []


# ---- for people -------------------------------------------------------------------------------------------------


def readable(study: Study, summary: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a summary: a number and its interval share a cell, "19.93 [18.20, 21.66]"."""
    names = list(dict.fromkeys(name for row in summary for name in row))
    shown = [name for name in names if not any(name == f"{other}{end}" for other in names for end in ("_low", "_high"))]
    digits = {column.name: column.digits for column in study.results}
    kept = [name for name in shown if any(row.get(name) is not None for row in summary)]
    plain_names = (*study.factors, *study.keys)
    cells = [
        [_with_interval(row, name, digits.get(name, None if name in plain_names else 2)) for name in kept]
        for row in summary
    ]
    return [name.replace("_", " ") for name in kept], cells


def _with_interval(row: Row, name: str, digits: int | None) -> str:
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return "-"
    # Counts of what was trained are no measurements, and have no digits after the point.
    counted = isinstance(value, int) and low is None and not name.endswith("_bits")
    if isinstance(value, bool) or not isinstance(value, int | float) or digits is None or counted:
        return cell_text(value)
    text = _number(value, digits)
    if isinstance(low, int | float) and isinstance(high, int | float) and low != high:
        text += f" [{_number(float(low), digits)}, {_number(float(high), digits)}]"
    return text


def _number(value: float, digits: int) -> str:
    """With so many digits after the point, unless nothing of it were left."""
    text = f"{value:.{digits}f}"
    return f"{value:.2g}" if value and not float(text) else text
