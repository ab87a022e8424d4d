"""Exposure and losses over training: the figure that shows when a model began to memorize."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.amounts import end_text
from lightning_exposure.report.figures.style import (
    FONT_SIZE,
    NAMED,
    LineStyle,
    Theme,
    ThemeName,
    dress,
    label_ends,
    line_style,
    new_figure,
    require,
    spread,
    theme_named,
)
from lightning_exposure.report.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKS_PER_LINE = 20


class _Track(NamedTuple):
    """One canary over time."""

    id: str
    times: list[float]
    estimates: list[ExposureEstimate]


def highlighted(record: RunRecord) -> list[str]:
    """The canaries that figures name: those that are certain to be most exposed, in the order of the set."""
    if record.final is None:
        return []
    estimates = record.final.estimates
    # Many may share rank 1 at the end: then the more likely ones.
    top = sorted(estimates, key=lambda key: (-estimates[key].low, estimates[key].log_perplexity))[:NAMED]
    return [canary.id for canary in record.canaries if canary.id in top]


def exposure_over_training(record: RunRecord, *, theme: ThemeName = "light", width: float = 8.0) -> Figure:
    """Exposure with its interval, and below it the losses, over the epochs (Figure 4 of the paper).

    If there are several measurements in an epoch, over the optimizer steps. Lines are drawn at the low ends of the
    intervals, shades reach to the high ends. Where only a lower bound is known, the mark is hollow.

    Args:
        record: A run with at least one measurement.
        theme: "light" or "dark".
        width: In inches; 4 suits a phone.

    Raises:
        ArgumentError: The run has no measurements, or there is no such theme.
        MissingExtraError: Matplotlib is not installed.
    """
    colors = theme_named(theme)
    if not any(measurement.estimates for measurement in record.history):
        raise ArgumentError("record.history has no estimates; expected at least one measurement. Train for an epoch.")
    losses = _losses(record)
    height = 5.4 if losses else 3.8
    figure = new_figure(colors, width, height)
    if losses:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 1])
        _draw_losses(lower, colors, losses, height=0.22 * height)
        dress(lower, colors, title="Loss", xlabel=_clock(record))
    else:
        upper = figure.subplots()
    _draw_exposures(upper, colors, record, height=(0.56 if losses else 0.75) * height)
    dress(upper, colors, title="Exposure", xlabel="" if losses else _clock(record), ylabel=_ylabel(record))
    upper.xaxis.set_major_locator(require("matplotlib.ticker").MaxNLocator(integer=True))
    return figure


def _ylabel(record: RunRecord) -> str:
    """What the line is, if the exposures are not all single numbers."""
    estimates = [estimate for track in _tracks(record) for estimate in track.estimates]
    exact = all(estimate.low == estimate.high for estimate in estimates)
    return "bits" if exact else "bits (line: at least; shade: at most)"


def _clock(record: RunRecord) -> str:
    epochs = [measurement.epoch for measurement in record.history]
    return "epoch" if len(set(epochs)) == len(epochs) else "step"


def _tracks(record: RunRecord) -> list[_Track]:
    clock = _clock(record)
    tracks = []
    for canary in record.canaries:
        points = [(0.0, record.baseline[canary.id])] if canary.id in record.baseline else []
        points += [
            (float(getattr(measurement, clock)), measurement.estimates[canary.id])
            for measurement in record.history
            if canary.id in measurement.estimates
        ]
        if points:
            tracks.append(_Track(canary.id, [time for time, _ in points], [estimate for _, estimate in points]))
    return tracks


def _draw_exposures(axes: Axes, theme: Theme, record: RunRecord, height: float) -> None:
    tracks, names = _tracks(record), highlighted(record)
    largest = max(estimate.high for track in tracks for estimate in track.estimates)
    sizes = _sizes(record)
    axes.set_ylim(0.0, 1.12 * max(largest, 1.0, *sizes.values()))
    ends = []
    others = [track for track in tracks if track.id not in names]
    if others:
        lines = [[(x, e.low) for x, e in zip(track.times, track.estimates, strict=True)] for track in others]
        axes.add_collection(
            require("matplotlib.collections").LineCollection(
                lines, colors=theme.muted, linewidths=0.6, alpha=0.45, zorder=1.5, label="others"
            )
        )
        middle = sorted(others, key=lambda track: track.estimates[-1].low)[len(others) // 2]
        ends.append((middle.times[-1], middle.estimates[-1].low, f"{len(others)} others", theme.muted))
    for track in tracks:
        if track.id in names:
            style = line_style(theme, names.index(track.id))
            _draw_track(axes, theme, track, style)
            last = track.estimates[-1]
            ends.append((track.times[-1], last.low, f"{track.id}  {end_text(last)}", style.color))
    axes.autoscale_view(scaley=False)
    _draw_sizes(axes, theme, sizes, height)
    label_ends(axes, theme, ends, height)


def _draw_track(axes: Axes, theme: Theme, track: _Track, style: LineStyle) -> None:
    lows, highs = [estimate.low for estimate in track.estimates], [estimate.high for estimate in track.estimates]
    if lows != highs:
        axes.fill_between(track.times, lows, highs, color=style.color, alpha=0.16, linewidth=0.0)
    axes.plot(track.times, lows, color=style.color, linestyle=style.dashes, linewidth=1.6, label=track.id)
    every = math.ceil(len(lows) / _MARKS_PER_LINE)
    for is_bound in (False, True):
        # Counted from the last point, which always gets its mark.
        marked = [i for i in range(len(lows) - 1, -1, -every) if track.estimates[i].is_bound == is_bound]
        if marked:
            axes.plot(
                [track.times[i] for i in marked],
                [lows[i] for i in marked],
                linestyle="none",
                marker=style.mark,
                markersize=5.0,
                color=style.color,
                markerfacecolor=theme.background if is_bound else style.color,
                label="_bounds" if is_bound else "_values",
            )


def _sizes(record: RunRecord) -> dict[str, float]:
    """log2 |R| by the name of the format; none against a prior, where each secret has a largest exposure of its own."""
    if any(estimate.prior_bits is not None for found in record.history for estimate in found.estimates.values()):
        return {}
    return {format_.name: math.log2(format_.size) for format_ in record.canaries.by_format()}


def _draw_sizes(axes: Axes, theme: Theme, sizes: Mapping[str, float], height: float) -> None:
    """As high as exposure goes: the secret is the most likely of all."""
    top = axes.get_ylim()[1]
    # Formats of the same size share a line.
    names = {bits: "/".join(name for name in sizes if sizes[name] == bits) for bits in sorted(set(sizes.values()))}
    places = spread([bits / top for bits in names], gap=1.35 * FONT_SIZE / (72.0 * height))
    for (bits, name), place in zip(names.items(), places, strict=True):
        which = f" of {name}" if len(names) > 1 else ""
        axes.axhline(bits, color=theme.muted, linestyle=(0, (4, 3)), linewidth=1.0, zorder=1.2, label="_size")
        axes.annotate(
            f"everything{which}: log₂|R| = {bits:.1f} bits",
            xy=(0.01, place),
            xycoords="axes fraction",
            xytext=(0, 2),
            textcoords="offset points",
            va="bottom",
            fontsize=FONT_SIZE - 1,
            color=theme.muted,
        )


def _losses(record: RunRecord) -> dict[str, list[tuple[float, float]]]:
    """Points of each loss; what diverged cannot be drawn."""
    clock = _clock(record)
    found = {}
    for label, name in (("training", "train_loss"), ("validation", "val_loss")):
        pairs = [(float(getattr(item, clock)), getattr(item, name)) for item in record.history]
        points = [(time, float(loss)) for time, loss in pairs if loss is not None and math.isfinite(loss)]
        if points:
            found[label] = points
    return found


def _draw_losses(axes: Axes, theme: Theme, losses: Mapping[str, list[tuple[float, float]]], height: float) -> None:
    ends = []
    for label, points in losses.items():
        # Neutral colours: the others mean canaries.
        color, dashes = (theme.text, "-") if label == "training" else (theme.muted, (0, (4, 1.5)))
        times, values = [time for time, _ in points], [value for _, value in points]
        axes.plot(times, values, color=color, linestyle=dashes, linewidth=1.5, marker="o", markersize=2.5, label=label)
        ends.append((times[-1], values[-1], label, color))
    axes.margins(y=0.15)
    axes.autoscale_view()
    label_ends(axes, theme, ends, height)
