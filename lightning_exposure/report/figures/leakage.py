"""Heat maps of leakage by insertion rate and cardinality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightning_exposure.errors import ArgumentError
from lightning_exposure.leakage.grid import LeakageRow
from lightning_exposure.report.figures.style import FONT_SIZE, Theme, ThemeName, dress, new_figure, require, theme_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Count = Callable[[LeakageRow], int]


def leakage_heat_maps(rows: Sequence[LeakageRow], *, theme: ThemeName = "light", width: float = 9.0) -> Figure:
    """Which share of the secrets appeared in free samples, and which an attacker extracts who knows their beginning.

    One column of maps for each class; in each map insertion rates from bottom to top, cardinalities from left to right.
    In the cells stands how many of how many.

    Args:
        rows: The rows of all cells; of several seeds the secrets are added up.
        theme: "light" or "dark".
        width: In inches.

    Raises:
        ArgumentError: There are no rows, or there is no such theme.
        MissingExtraError: Matplotlib is not installed.
    """
    colors = theme_named(theme)
    if not rows:
        raise ArgumentError("rows is empty; expected the rows of at least one cell. Call leakage_cell first.")
    kinds = list(dict.fromkeys(row.kind for row in rows))
    figure = new_figure(colors, width, 6.0)
    axes = figure.subplots(2, len(kinds), squeeze=False, sharex=True, sharey=True)
    counts: tuple[tuple[str, Count], ...] = (
        ("appeared in free samples", lambda row: row.leaked),
        ("extracted from a known beginning", lambda row: row.targeted),
    )
    for row, (title, count) in enumerate(counts):
        for column, kind in enumerate(kinds):
            panel = axes[row, column]
            _draw(panel, colors, [it for it in rows if it.kind == kind], count)
            across = "different secrets" if row else ""
            dress(panel, colors, xlabel=across, ylabel="" if column else "lines inserted per line of text")
            panel.grid(False)
            panel.set_title(f"{kind}\n{title}", loc="left", fontsize=FONT_SIZE, color=colors.text)
    return figure


def _draw(axes: Axes, theme: Theme, rows: Sequence[LeakageRow], count: Count) -> None:
    rates, numbers = sorted({row.rate for row in rows}), sorted({row.cardinality for row in rows})
    hits, totals = np.zeros((len(rates), len(numbers)), int), np.zeros((len(rates), len(numbers)), int)
    for row in rows:
        cell = rates.index(row.rate), numbers.index(row.cardinality)
        hits[cell] += count(row)
        totals[cell] += row.cardinality
    colors = require("matplotlib.colors").LinearSegmentedColormap.from_list("leaks", [theme.grid, theme.lines[0]])
    shares = np.divide(hits, totals, out=np.full(hits.shape, np.nan), where=totals > 0)
    axes.imshow(shares, origin="lower", aspect="auto", vmin=0.0, vmax=1.0, cmap=colors)
    for (line, column), total in np.ndenumerate(totals):
        if total:
            dark = (shares[line, column] > 0.5) == (theme.background == "#ffffff")
            axes.text(
                column, line, f"{hits[line, column]} of {total}", ha="center", va="center", fontsize=FONT_SIZE,
                color=theme.background if dark else theme.text,
            )  # fmt: skip
    axes.set_xticks(range(len(numbers)), [f"{number}" for number in numbers])
    axes.set_yticks(range(len(rates)), [f"{rate:.3g}" for rate in rates])
