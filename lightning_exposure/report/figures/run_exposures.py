"""Runs beside each other: how exposed their canaries are, and their validation losses."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from lightning_exposure.report.figures.style import (
    FONT_SIZE,
    Theme,
    ThemeName,
    dress,
    line_style,
    new_figure,
    theme_named,
)
from lightning_exposure.report.side_by_side import ComparedRun, SideBySide

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.55
"""The height of a run, in inches."""


def exposures_of_runs(comparison: SideBySide, *, theme: ThemeName = "light", width: float = 8.0) -> Figure:
    """A row per run: intervals of its canaries at the left, its validation loss at the right.

    The thick line goes from the largest lower end to the largest upper end; hollow marks are the lower ends of the
    other canaries.

    Args:
        comparison: The runs.
        theme: "light" or "dark".
        width: In inches.

    Raises:
        MissingExtraError: Matplotlib is not installed.
    """
    colors = theme_named(theme)
    runs = list(comparison.runs)
    figure = new_figure(colors, width, 1.2 + _ROW * len(runs))
    has_losses = any(run.loss("val_loss") is not None for run in runs)
    left, *rest = figure.subplots(1, 2 if has_losses else 1, sharey=True, width_ratios=[3, 2] if has_losses else None,
                                  squeeze=False)[0]  # fmt: skip
    for place, run in enumerate(runs):
        _draw_run(left, colors, place, run)
        loss = run.loss("val_loss")
        for axes in rest:
            if loss is not None:
                axes.plot([loss], [place], linestyle="none", marker="D", markersize=5.5, color=colors.text)
    largest = max((e.ceiling_bits for run in runs for _, e in run.exposures), default=1.0)
    left.axvline(largest, color=colors.muted, linewidth=0.8, linestyle=(0, (4, 3)))
    left.set_xlim(-0.03 * largest, 1.06 * largest)
    left.set_ylim(len(runs) - 0.5, -0.5)
    chars = max(14, int(3.2 * width))
    left.set_yticks(range(len(runs)), [_label(run, chars) for run in runs])
    dress(left, colors, xlabel="exposure (bits)")
    for axes in rest:
        axes.margins(x=0.2)
        dress(axes, colors, xlabel="validation loss")
    left.tick_params(axis="y", colors=colors.text, labelsize=FONT_SIZE)
    return figure


def _label(run: ComparedRun, chars: int) -> str:
    """The name and the defences, without their settings: those are in the table."""
    names = " + ".join(str(entry.get("name", "unnamed")) for entry in run.defences) or "no defence"
    return "\n".join([textwrap.shorten(run.name, chars, placeholder="..."), *textwrap.wrap(names, chars)])


def _draw_run(axes: Axes, colors: Theme, place: int, run: ComparedRun) -> None:
    style = line_style(colors, place)
    if run.bounds is None:
        axes.annotate("not measured", (0.0, place), va="center", fontsize=FONT_SIZE - 1, color=colors.muted)
        return
    low, high = run.bounds
    others = [estimate.low for _, estimate in run.exposures[1:]]
    axes.plot(others, [place] * len(others), linestyle="none", marker="o", markersize=4.5, color=style.color,
              markerfacecolor=colors.background)  # fmt: skip
    axes.plot([low, high], [place, place], color=style.color, linewidth=3.0, solid_capstyle="butt")
    axes.plot([low], [place], linestyle="none", marker=style.mark, markersize=7.5, color=style.color)
