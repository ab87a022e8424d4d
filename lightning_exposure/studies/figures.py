"""Figures of studies: means with their intervals, in the style of all our figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_exposure.report.figures.style import dress, legend, line_style, new_figure, theme_named
from lightning_exposure.studies.study import Row, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 7.2, 4.0
_FEW = 6


def line_figure(
    summary: Sequence[Row],
    x: str,
    y: str,
    *,
    by: str | None = None,
    title: str,
    xlabel: str,
    ylabel: str,
    log: bool = False,
) -> Figure:
    """A line for each value of `by`: the means of `y` against `x`, with their intervals.

    Args:
        summary: Rows with the columns `x`, `y`, `y_low` and `y_high`.
        x: The column along the bottom.
        y: The column that is drawn.
        by: The column that tells the lines apart; None: one line.
        title: Of the figure.
        xlabel: Of the bottom axis.
        ylabel: Of the side axis.
        log: Whether the bottom axis is logarithmic.
    """
    theme = theme_named("light")
    figure = new_figure(theme, _WIDTH, _HEIGHT)
    axes = figure.add_subplot()
    dress(axes, theme, title=title, xlabel=xlabel, ylabel=ylabel)
    if log:
        axes.set_xscale("log", base=2)
    series = list(dict.fromkeys(row.get(by) for row in summary)) if by is not None else [None]
    for place, value in enumerate(series):
        rows = [row for row in summary if (by is None or row.get(by) == value) and is_number(row.get(y))]
        add_line(axes, place, rows, x, y, label="" if by is None else f"{by.replace('_', ' ')} {value}")
    if log:
        ticks = sorted({to_float(row.get(x)) for row in summary})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if by is not None:
        legend(axes, theme)
    return figure


def add_line(axes: Axes, place: int, rows: Sequence[Row], x: str, y: str, label: str = "") -> None:
    """One line with its intervals; x that are no numbers are places."""
    theme = theme_named("light")
    style = line_style(theme, place)
    at = [_at(row.get(x), i) for i, row in enumerate(rows)]
    middle = [to_float(row.get(y)) for row in rows]
    axes.plot(
        at, middle, color=style.color, marker=style.mark, linestyle=style.dashes, markersize=4.5, label=label or None
    )
    ends = [
        (to_float(row.get(f"{y}_low"), m), to_float(row.get(f"{y}_high"), m))
        for row, m in zip(rows, middle, strict=True)
    ]
    if len(at) <= _FEW:
        # Bands of so few points would cover each other.
        below, above = (
            [m - low for (low, _), m in zip(ends, middle, strict=True)],
            [high - m for (_, high), m in zip(ends, middle, strict=True)],
        )
        axes.errorbar(
            at, middle, yerr=[below, above], color=style.color, linestyle="none", capsize=3 + place, alpha=0.6
        )
    elif any(low != high for low, high in ends):
        axes.fill_between(at, [low for low, _ in ends], [high for _, high in ends], color=style.color, alpha=0.15, lw=0)


def bar_figure(summary: Sequence[Row], names: Sequence[str], y: str, *, title: str, xlabel: str) -> Figure:
    """A point with its interval for each row, one below the other, labelled with the columns `names`.

    Args:
        summary: Rows with the columns `y`, `y_low` and `y_high`.
        names: The columns that name a row.
        y: The column that is drawn.
        title: Of the figure.
        xlabel: What `y` is.
    """
    theme = theme_named("light")
    rows = [row for row in summary if is_number(row.get(y))]
    figure = new_figure(theme, _WIDTH, 1.2 + 0.32 * max(len(rows), 1))
    axes = figure.add_subplot()
    dress(axes, theme, title=title, xlabel=xlabel)
    style = line_style(theme, 0)
    for place, row in enumerate(rows):
        middle = to_float(row.get(y))
        low, high = to_float(row.get(f"{y}_low"), middle), to_float(row.get(f"{y}_high"), middle)
        axes.plot([low, high], [place, place], color=style.color, linewidth=2, alpha=0.5)
        axes.plot([middle], [place], color=style.color, marker=style.mark, linestyle="none")
    axes.set_yticks(
        range(len(rows)), [" ".join(str(row.get(name)) for name in names if row.get(name) is not None) for row in rows]
    )
    axes.invert_yaxis()
    return figure


def is_number(value: Value) -> bool:
    """Whether something can be drawn."""
    return isinstance(value, int | float)


def to_float(value: Value, otherwise: float = 0.0) -> float:
    """A number as a float; anything else as another one."""
    return float(value) if isinstance(value, int | float) else otherwise


def _at(value: Value, place: int) -> float:
    return to_float(value, float(place))


def curves_figure(
    summary: Sequence[Row], x: str, panels: Sequence[tuple[str, Sequence[str]]], *, title: str, xlabel: str
) -> Figure:
    """Panels one above the other that share the bottom axis.

    Args:
        summary: Rows with the columns `x` and those of the panels, with their intervals.
        x: The column along the bottom.
        panels: For each panel what its side axis says, and the columns that are drawn in it.
        title: Of the figure.
        xlabel: Of the bottom axis.
    """
    theme = theme_named("light")
    figure = new_figure(theme, _WIDTH, 1.0 + 2.3 * len(panels))
    for place, (ylabel, names) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, place + 1)
        last = place == len(panels) - 1
        dress(axes, theme, title="" if place else title, xlabel=xlabel if last else "", ylabel=ylabel)
        for line, name in enumerate(names):
            rows = [row for row in summary if is_number(row.get(name))]
            add_line(axes, line, rows, x, name, label=name.replace("_", " "))
        legend(axes, theme)
    return figure


def step_figure(
    rows: Sequence[Row], x: str, *, by: str, title: str, xlabel: str, ylabel: str, chance: bool = False
) -> Figure:
    """The share of trainings with at least so much, a line for each value of `by`.

    Args:
        rows: Of the table.
        x: The column whose distribution is drawn.
        by: The column that tells the lines apart.
        title: Of the figure.
        xlabel: What `x` is.
        ylabel: Of the side axis.
        chance: Draw what exposures of secrets look like that were never seen, too: b bits with probability 2^-b.
    """
    theme = theme_named("light")
    figure = new_figure(theme, _WIDTH, _HEIGHT)
    axes = figure.add_subplot()
    dress(axes, theme, title=title, xlabel=xlabel, ylabel=ylabel)
    for place, value in enumerate(dict.fromkeys(row.get(by) for row in rows)):
        found = sorted(to_float(row.get(x)) for row in rows if row.get(by) == value)
        style = line_style(theme, place)
        shares = [1 - i / len(found) for i in range(len(found))]
        axes.step(found, shares, where="post", color=style.color, label=f"{by} {value}", linestyle=style.dashes)
    if chance:
        end = max(to_float(row.get(x)) for row in rows)
        at = [end * i / 100 for i in range(101)]
        axes.plot(at, [2.0**-bits for bits in at], color=theme.muted, linewidth=1, label="chance")
    legend(axes, theme)
    return figure


def scatter_figure(
    rows: Sequence[Row],
    x: str,
    y: str,
    *,
    by: str,
    title: str,
    xlabel: str,
    ylabel: str,
    log: bool = False,
    diagonal: bool = False,
) -> Figure:
    """A point for each row, with a colour and a mark for each value of `by`.

    Args:
        rows: Of the table.
        x: The column along the bottom.
        y: The column up the side.
        by: The column that tells the points apart.
        title: Of the figure.
        xlabel: Of the bottom axis.
        ylabel: Of the side axis.
        log: Whether the side axis is logarithmic.
        diagonal: Draw where both are equal.
    """
    theme = theme_named("light")
    figure = new_figure(theme, _WIDTH, _HEIGHT)
    axes = figure.add_subplot()
    dress(axes, theme, title=title, xlabel=xlabel, ylabel=ylabel)
    if log:
        axes.set_yscale("log")
    drawn = [row for row in rows if is_number(row.get(x)) and is_number(row.get(y))]
    if diagonal:
        end = max([to_float(row.get(x)) for row in drawn], default=1.0)
        axes.plot([0, end], [0, end], color=theme.muted, linewidth=1)
    for place, value in enumerate(dict.fromkeys(row.get(by) for row in drawn)):
        style = line_style(theme, place)
        chosen = [row for row in drawn if row.get(by) == value]
        at = ([to_float(row.get(x)) for row in chosen], [to_float(row.get(y)) for row in chosen])
        axes.plot(
            *at, color=style.color, marker=style.mark, linestyle="none", markersize=4, alpha=0.6, label=str(value)
        )
    legend(axes, theme)
    return figure
