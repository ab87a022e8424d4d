"""Validation loss against exposure: which checkpoint to keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_exposure.errors import ArgumentError
from lightning_exposure.report.figures.style import (
    FONT_SIZE,
    Theme,
    ThemeName,
    dress,
    line_style,
    new_figure,
    theme_named,
)
from lightning_exposure.report.limits.checkpoints import MeasuredCheckpoint, lowest_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NEAR = (0.1, 0.06)
"""Names closer than these parts of the axes would overlap."""


def loss_against_exposure(
    checkpoints: Sequence[MeasuredCheckpoint],
    *,
    max_bits: float,
    theme: ThemeName = "light",
    width: float = 8.0,
) -> Figure:
    """One point per checkpoint, in the order of training; those beyond the limit are hollow, the choice has a ring.

    Points stand at the upper ends of the exposures, which decide; a line to the left goes as far as the lower end.

    Args:
        checkpoints: As `measured_checkpoints` finds them.
        max_bits: The largest exposure that is allowed.
        theme: "light" or "dark".
        width: In inches.

    Raises:
        ArgumentError: There are no checkpoints, or there is no such theme.
        MissingExtraError: Matplotlib is not installed.
    """
    colors = theme_named(theme)
    if not checkpoints:
        raise ArgumentError(
            "checkpoints is empty; expected at least one to draw. Take those of measured_checkpoints()."
        )
    chosen = lowest_loss(checkpoints, max_bits)
    figure = new_figure(colors, width, 3.8)
    axes = figure.subplots()
    highs, losses = [each.high for each in checkpoints], [each.val_loss for each in checkpoints]
    axes.plot(highs, losses, color=colors.muted, alpha=0.5, linewidth=1.2, zorder=1.5)
    style = line_style(colors, 0)
    for each in checkpoints:
        if each.low != each.high:
            axes.hlines(each.val_loss, each.low, each.high, color=style.color, linewidth=1.0, alpha=0.6, zorder=2)
        face = style.color if each.high <= max_bits else colors.background
        axes.plot([each.high], [each.val_loss], linestyle="none", marker="o", markersize=6, color=style.color,
                  markerfacecolor=face, zorder=3)  # fmt: skip
    axes.margins(x=0.12, y=0.18)
    _draw_limit(axes, colors, max_bits)
    _name(axes, colors, checkpoints, chosen)
    if chosen is not None:
        _ring(axes, colors, chosen)
    exact = all(each.low == each.high for each in checkpoints)
    title = f"None of {len(checkpoints)} checkpoints is within the limit"
    if chosen is not None:
        title = f"Epoch {chosen.epoch}: loss {chosen.val_loss:.3f}, at most {chosen.high:.1f} bits"
    dress(
        axes,
        colors,
        title=title,
        xlabel=f"largest exposure (bits{'' if exact else ', at most'})",
        ylabel="validation loss",
    )
    return figure


def _draw_limit(axes: Axes, colors: Theme, limit: float) -> None:
    axes.axvline(limit, color=colors.muted, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.2)
    axes.annotate(f"limit {limit:g} bits", (limit, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -4),
                  textcoords="offset points", va="top", fontsize=FONT_SIZE - 1, color=colors.muted)  # fmt: skip


def _name(
    axes: Axes, colors: Theme, checkpoints: Sequence[MeasuredCheckpoint], chosen: MeasuredCheckpoint | None
) -> None:
    """Those by their epochs that are not too close to one that is named already; the last one first."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    taken = [] if chosen is None else [chosen]
    for each in reversed(checkpoints):
        if any(
            abs(each.high - other.high) < _NEAR[0] * (right - left)
            and abs(each.val_loss - other.val_loss) < _NEAR[1] * (top - bottom)
            for other in taken
        ):
            continue
        taken.append(each)
        axes.annotate(f"epoch {each.epoch}", (each.high, each.val_loss), xytext=(5, 5), textcoords="offset points",
                      fontsize=FONT_SIZE - 1, color=colors.muted)  # fmt: skip


def _ring(axes: Axes, colors: Theme, chosen: MeasuredCheckpoint) -> None:
    mark = line_style(colors, 1).color
    axes.plot([chosen.high], [chosen.val_loss], linestyle="none", marker="o", markersize=14, color=mark,
              markerfacecolor="none", markeredgewidth=1.8, zorder=4)  # fmt: skip
    axes.annotate("chosen", (chosen.high, chosen.val_loss), xytext=(-8, -10), textcoords="offset points", ha="right",
                  va="top", fontsize=FONT_SIZE, color=mark)  # fmt: skip
