"""Figures of studies: means with their intervals, in the style of all our figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_exposure.report.figures.style import dress, legend, line_style, new_figure, theme_named
from lightning_exposure.studies.study import Row, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

_WIDTH, _HEIGHT = 7.2, 4.0
_FEW = 6
_APART = 5.0
"""Points between series whose intervals would cover each other."""


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
        label = "" if by is None else _named(by, value)
        add_line(axes, place, rows, x, y, label=label, shift=_APART * (place - (len(series) - 1) / 2))
    _mark_few(axes, summary, x)
    if by is not None:
        _legend_beside(axes)
    return figure


def _named(column: str, value: Value) -> str:
    """What a legend calls a value: words speak for themselves, numbers do not."""
    return value if isinstance(value, str) else f"{column.replace('_', ' ')} {value}"


def _legend_beside(axes: Axes) -> None:
    """A legend that covers nothing."""
    legend(axes, theme_named("light"), loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _mark_few(axes: Axes, rows: Sequence[Row], x: str) -> None:
    """Where there are few places, the axis names those and no others."""
    ticks = sorted({to_float(row.get(x)) for row in rows})
    if len(ticks) <= _FEW:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)


def add_line(axes: Axes, place: int, rows: Sequence[Row], x: str, y: str, label: str = "", shift: float = 0.0) -> None:
    """One line with its intervals; x that are no numbers are places. Few points are shifted by so many points."""
    style = line_style(theme_named("light"), place)
    at = [_at(row.get(x), i) for i, row in enumerate(rows)]
    middle = [to_float(row.get(y)) for row in rows]
    ends = [
        (to_float(row.get(f"{y}_low"), m), to_float(row.get(f"{y}_high"), m))
        for row, m in zip(rows, middle, strict=True)
    ]
    few = len(at) <= _FEW
    look: dict[str, Any] = {"color": style.color, "marker": style.mark, "linestyle": style.dashes, "markersize": 4.5}
    lines = axes.plot(at, middle, **look, label=label or None)
    if few:
        # Bands of so few points would cover each other.
        for where, interval in zip(at, ends, strict=True):
            if interval[0] != interval[1]:
                lines += axes.plot([where, where], interval, color=style.color, marker="_", alpha=0.6)
        # Moved when they are drawn already: the limits of the axes follow only what is at its place.
        for line in lines:
            line.set_transform(axes.transData + _moved(axes, shift))
    elif any(low != high for low, high in ends):
        axes.fill_between(at, [low for low, _ in ends], [high for _, high in ends], color=style.color, alpha=0.15, lw=0)


def _moved(axes: Axes, points: float) -> Transform:
    """To the right, whatever the scale of the axis."""
    from matplotlib.transforms import ScaledTranslation

    assert axes.figure is not None, "it was made by one"
    return ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)


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
    labels = [", ".join(_named(name, row[name]) for name in names if row.get(name) is not None) for row in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
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
    summary: Sequence[Row], x: str, panels: Sequence[tuple[str, Mapping[str, str]]], *, title: str, xlabel: str
) -> Figure:
    """Panels one above the other that share the bottom axis.

    Args:
        summary: Rows with the columns `x` and those of the panels, with their intervals.
        x: The column along the bottom.
        panels: For each panel what its side axis says, and the columns that are drawn in it, with what they are called.
        title: Of the figure.
        xlabel: Of the bottom axis.
    """
    theme = theme_named("light")
    figure = new_figure(theme, _WIDTH, 1.0 + 2.3 * len(panels))
    for place, (ylabel, names) in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, place + 1)
        last = place == len(panels) - 1
        dress(axes, theme, title="" if place else title, xlabel=xlabel if last else "", ylabel=ylabel)
        for line, (name, label) in enumerate(names.items()):
            rows = [row for row in summary if is_number(row.get(name))]
            add_line(axes, line, rows, x, name, label=label, shift=_APART * (line - (len(names) - 1) / 2))
        _mark_few(axes, summary, x)
        _legend_beside(axes)
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
        found = [to_float(row.get(x)) for row in rows if row.get(by) == value]
        style = line_style(theme, place)
        at = sorted({0.0, *found})
        shares = [sum(one >= least for one in found) / len(found) for least in at]
        axes.step(at, shares, where="pre", color=style.color, label=_named(by, value), linestyle=style.dashes)
    if chance:
        end = max(to_float(row.get(x)) for row in rows)
        at = [end * i / 100 for i in range(101)]
        axes.plot(at, [2.0**-bits for bits in at], color=theme.muted, linewidth=1, label="chance")
    _legend_beside(axes)
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
        look: dict[str, Any] = {
            "color": style.color,
            "marker": style.mark,
            "linestyle": "none",
            "markersize": 4.5,
            "alpha": 0.6,
        }
        axes.plot(*at, **look, label=str(value).replace("_", " "))
    _legend_beside(axes)
    return figure
