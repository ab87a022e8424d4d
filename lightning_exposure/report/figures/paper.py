"""The figures of the paper, from a run or from plain points. Every function returns a new figure.

Lines differ in colour, mark and dashes, and carry their names where they end. Of many canaries the most exposed are
named and the others stay grey behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_exposure._checks import number
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import SkewNormal
from lightning_exposure.report.figures._over_training import exposure_over_training, highlighted
from lightning_exposure.report.figures.style import (
    FONT_SIZE,
    NAMED,
    Theme,
    ThemeName,
    dress,
    legend,
    line_style,
    new_figure,
    save,
    theme_named,
)
from lightning_exposure.report.record import References

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "AttackPoint",
    "RankPoint",
    "expansions_against_exposure",
    "exposure_over_training",
    "highlighted",
    "rank_agreement",
    "reference_histogram",
    "save",
]

_Point = TypeVar("_Point")
_WIDE = 6.0  # inches; what is narrower is for a phone


class AttackPoint(NamedTuple):
    """One attack on one secret: its exposure, what the attack cost, and whether it found the secret."""

    exposure: float
    expansions: int
    found: bool


class RankPoint(NamedTuple):
    """One secret: its exact rank, and what a method estimated."""

    exact: float
    estimated: float
    method: str


# ---- references -------------------------------------------------------------------------------------------


def reference_histogram(
    references: References,
    costs: Mapping[str, float],
    *,
    highlight: Sequence[str] | None = None,
    title: str = "Log-perplexity of ordinary secrets and of the canaries",
    theme: ThemeName = "light",
    width: float = 8.0,
) -> Figure:
    """What ordinary secrets cost, the skew-normal fit, and where the canaries lie (Figure 2 of the paper).

    Args:
        references: Costs of secrets drawn uniformly, and the fit.
        costs: What each canary costs, by id. One that the model thinks impossible has no place and is left out.
        highlight: Ids in the order of their colours; the others become grey ticks. Without it, the cheapest.
        title: Above the figure.
        theme: "light" or "dark".
        width: In inches.

    Raises:
        ArgumentError: There are no finite reference costs, or there is no such theme.
        MissingExtraError: Matplotlib is not installed.

    Example:
        >>> references = References([30.0 + 0.1 * i for i in range(40)])
        >>> len(reference_histogram(references, {"ssn-4x": 21.5}).axes)
        1
    """
    colors = theme_named(theme)
    drawn = np.array([cost for cost in references.costs if math.isfinite(cost)])
    if not len(drawn):
        raise ArgumentError(
            "references.costs has no finite costs; expected log-perplexities for a histogram. Draw more references."
        )
    places = {key: cost for key, cost in costs.items() if math.isfinite(cost)}
    cheapest = sorted(places, key=places.__getitem__)[:NAMED]
    names = [key for key in places if key in cheapest] if highlight is None else list(highlight)
    figure = new_figure(colors, width, 3.8 if width >= _WIDE else 4.2)
    axes = figure.subplots()
    _draw_references(axes, colors, drawn, references.fit, reach=[*drawn, *places.values()])
    _draw_canary_costs(axes, colors, places, names)
    dress(axes, colors, title=title if width >= _WIDE else "", xlabel="log-perplexity (bits)", ylabel="density")
    legend(axes, colors, loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=2 if width >= _WIDE else 1)
    return figure


def _draw_references(
    axes: Axes, theme: Theme, costs: NDArray[np.float64], fit: SkewNormal | None, reach: Sequence[float]
) -> None:
    """The histogram, and the fit over all that is in reach; the upper part stays free for the canaries' names."""
    density, edges = np.histogram(costs, bins=min(80, max(8, math.isqrt(len(costs)))), density=True)
    label = f"{len(costs):,} secrets drawn uniformly"
    axes.stairs(density, edges, fill=True, color=theme.muted, alpha=0.35, label=label)
    peak = float(density.max())
    if fit is not None:
        places = np.linspace(min(reach), max(reach), 400)
        curve = np.exp(fit.log_density(places))
        label = f"skew-normal fit (Kolmogorov-Smirnov p = {fit.ks_pvalue:.2g})"
        axes.plot(places, curve, color=theme.text, linewidth=1.4, label=label)
        peak = max(peak, float(curve.max()))
    axes.set_ylim(0.0, 1.6 * peak)


def _draw_canary_costs(axes: Axes, theme: Theme, costs: Mapping[str, float], names: Sequence[str]) -> None:
    """A stem for each canary; the cheaper, the higher, so that no stem runs through a label."""
    others = [cost for key, cost in costs.items() if key not in names]
    if others:
        label = f"{len(others)} other canaries" if len(others) > 1 else "1 other canary"
        axes.plot(
            others,
            [0.02] * len(others),
            transform=axes.get_xaxis_transform(),
            linestyle="none",
            marker="|",
            markersize=9.0,
            color=theme.muted,
            label=label,
        )
    shown = sorted((key for key in names if key in costs), key=costs.__getitem__)
    for level, key in enumerate(shown):
        style = line_style(theme, names.index(key))
        height = 0.95 - 0.085 * level
        axes.vlines(
            costs[key], 0.0, height, transform=axes.get_xaxis_transform(), color=style.color, linestyle=style.dashes
        )
        axes.plot(
            [costs[key]], [height], transform=axes.get_xaxis_transform(), marker=style.mark, color=style.color,
            linestyle="none", markersize=6.0, label="_canary",
        )  # fmt: skip
        left, right = axes.get_xlim()
        flip = costs[key] > left + 0.75 * (right - left)
        axes.annotate(
            f"{key}  {costs[key]:.1f}",
            xy=(costs[key], height),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-6 if flip else 6, 0),
            textcoords="offset points",
            ha="right" if flip else "left",
            va="center",
            fontsize=FONT_SIZE,
            color=style.color,
        )


# ---- many runs --------------------------------------------------------------------------------------------


def expansions_against_exposure(
    points: Sequence[AttackPoint | tuple[float, int, bool]],
    *,
    size_bits: float | None = None,
    theme: ThemeName = "light",
    width: float = 8.0,
) -> Figure:
    """What an attack costs, for secrets of different exposure (Figure 5 of the paper).

    Args:
        points: Exposure, expansions and whether the secret was found, of each attack.
        size_bits: log2 |R|: as far right as a secret can be.
        theme: "light" or "dark".
        width: In inches.

    Raises:
        ArgumentError: There are no points, an attack of less than one expansion, or there is no such theme.
        MissingExtraError: Matplotlib is not installed.

    Example:
        >>> figure = expansions_against_exposure([(29.9, 26, True), (12.0, 100_000, False)], size_bits=29.9)
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['found', 'not found when the attack ended']
    """
    colors = theme_named(theme)
    given = [AttackPoint(*point) for point in _some(points)]
    for place, point in enumerate(given):
        _positive(f"points[{place}].expansions", point.expansions)
    figure = new_figure(colors, width, 3.8)
    axes = figure.subplots()
    axes.set_yscale("log")
    for place, (found, label) in enumerate(((True, "found"), (False, "not found when the attack ended"))):
        chosen = [point for point in given if bool(point.found) == found]
        if chosen:
            style = line_style(colors, place)
            axes.scatter(
                [point.exposure for point in chosen],
                [point.expansions for point in chosen],
                s=28,
                marker=style.mark,
                facecolors=style.color if found else "none",
                edgecolors=style.color,
                label=label,
            )
    if size_bits is not None:
        _draw_size(axes, colors, size_bits)
    dress(axes, colors, title="Cost of an attack", xlabel="exposure (bits)", ylabel="expansions")
    legend(axes, colors, loc="upper left", bbox_to_anchor=(0.0, -0.16), ncols=2 if width >= _WIDE else 1)
    return figure


def _draw_size(axes: Axes, theme: Theme, size_bits: float) -> None:
    axes.axvline(size_bits, color=theme.muted, linestyle=(0, (4, 3)), linewidth=1.0, label="_size")
    axes.text(
        size_bits,
        0.98,
        f"everything: log₂|R| = {size_bits:.1f} bits ",
        transform=axes.get_xaxis_transform(),
        ha="right",
        va="top",
        fontsize=FONT_SIZE - 1,
        color=theme.muted,
    )


def rank_agreement(
    points: Sequence[RankPoint | tuple[float, float, str]], *, theme: ThemeName = "light", width: float = 6.0
) -> Figure:
    """Estimated against exact ranks, both logarithmic (Figure 6 of the paper).

    Args:
        points: Exact rank, estimated rank and method, of each secret.
        theme: "light" or "dark".
        width: In inches.

    Raises:
        ArgumentError: There are no points, a rank below 1, or there is no such theme.
        MissingExtraError: Matplotlib is not installed.
    """
    colors = theme_named(theme)
    given = [RankPoint(*point) for point in _some(points)]
    for place, point in enumerate(given):
        _positive(f"points[{place}].exact", point.exact)
        _positive(f"points[{place}].estimated", point.estimated)
    figure = new_figure(colors, width, 4.6)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = [min(min(p.exact, p.estimated) for p in given), max(max(p.exact, p.estimated) for p in given)]
    axes.plot(ends, ends, color=colors.muted, linestyle=(0, (4, 3)), linewidth=1.0, label="estimated = exact")
    for place, method in enumerate(dict.fromkeys(point.method for point in given)):
        style = line_style(colors, place)
        chosen = [point for point in given if point.method == method]
        axes.scatter(
            [point.exact for point in chosen],
            [point.estimated for point in chosen],
            s=26,
            marker=style.mark,
            facecolors="none",
            edgecolors=style.color,
            label=method.replace("$", r"\$"),
        )
    dress(axes, colors, title="Estimated and exact ranks", xlabel="exact rank", ylabel="estimated rank")
    legend(axes, colors, loc="upper left")
    return figure


def _some(points: Sequence[_Point]) -> Sequence[_Point]:
    if not len(points):
        raise ArgumentError("points is empty; expected at least one to draw. Give a list of points.")
    return points


def _positive(name: str, value: float) -> None:
    number(name, value, at_least=1, remedy="The axis is logarithmic.")
