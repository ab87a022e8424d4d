"""Exposure and test loss against epsilon: what privacy buys, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from lightning_exposure.errors import ArgumentError
from lightning_exposure.report.comparison import Comparison, Outcome, optimizers
from lightning_exposure.report.figures.style import (
    FONT_SIZE,
    LineStyle,
    Theme,
    ThemeName,
    dress,
    legend,
    line_style,
    new_figure,
    theme_named,
)
from lightning_exposure.report.verdicts import HOLDS, LEAKS, UNKNOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CLIP_ONLY, _NONE = "clip\nonly", "no\nprivacy"
_FILLINGS: dict[str, Literal["full", "left"]] = {LEAKS: "full", HOLDS: "full", UNKNOWN: "left"}
_STEP = 1.0
"""Between places without a finite epsilon, in powers of ten."""


def exposure_against_epsilon(comparison: Comparison, *, theme: ThemeName = "light", width: float = 8.0) -> Figure:
    """Exposure above, test loss below, over epsilon on a logarithmic axis; settings without one stand at its right.

    Lines go through the low ends of the intervals. A filled mark is a secret that can be extracted, a hollow one a
    secret for which that is ruled out, and half a mark one of which neither is known.

    Args:
        comparison: The outcomes.
        theme: "light" or "dark".
        width: In inches.

    Raises:
        ArgumentError: There are no outcomes, or there is no such theme.
        MissingExtraError: Matplotlib is not installed.
    """
    colors = theme_named(theme)
    if not comparison.outcomes:
        raise ArgumentError("comparison has no outcomes; expected at least one training run to draw. Add an Outcome.")
    places = _places(comparison.outcomes)
    figure = new_figure(colors, width, 5.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for index, optimizer in enumerate(optimizers(comparison.outcomes)):
        style = line_style(colors, index)
        runs = sorted((o for o in comparison.outcomes if o.optimizer == optimizer), key=lambda o: places[_key(o)])
        xs = [places[_key(outcome)] for outcome in runs]
        _draw(upper, colors, style, optimizer, runs, xs, lambda outcome: outcome.exposure.low)
        _draw(lower, colors, style, optimizer, runs, xs, lambda outcome: outcome.test_loss)
        for x, outcome in zip(xs, runs, strict=True):
            if outcome.exposure.low != outcome.exposure.high:
                upper.vlines(x, outcome.exposure.low, outcome.exposure.high, color=style.color, linewidth=1.2)
    size = max(outcome.exposure.size_bits for outcome in comparison.outcomes)
    upper.axhline(size, color=colors.muted, linewidth=0.8, linestyle=(0, (4, 3)))
    upper.annotate("as exposed as can be", (0.0, size), xycoords=("axes fraction", "data"), xytext=(2, 3),
                   textcoords="offset points", fontsize=FONT_SIZE - 1, color=colors.muted)  # fmt: skip
    upper.set_ylim(-0.6, 1.15 * size)
    exact = all(outcome.exposure.low == outcome.exposure.high for outcome in comparison.outcomes)
    dress(upper, colors, ylabel="exposure (bits)" if exact else "exposure (bits, at least)")
    dress(lower, colors, xlabel="epsilon", ylabel="test loss (nats)")
    _label_places(lower, comparison.outcomes, places)
    legend(upper, colors, loc="upper left", bbox_to_anchor=(0.0, 0.88))
    return figure


def _key(outcome: Outcome) -> float | str:
    if math.isfinite(outcome.epsilon):
        return outcome.epsilon
    return _NONE if outcome.noise_multiplier is None else _CLIP_ONLY


def _places(outcomes: Sequence[Outcome]) -> dict[float | str, float]:
    """Where each setting stands: at the logarithm of its epsilon, or right of them all."""
    keys = {_key(outcome) for outcome in outcomes}
    places: dict[float | str, float] = {
        key: math.log10(max(key, 1e-3)) for key in sorted(key for key in keys if isinstance(key, float))
    }
    last = max(places.values(), default=-_STEP)
    for key in (_CLIP_ONLY, _NONE):
        if key in keys:
            last += _STEP
            places[key] = last
    return places


def _draw(
    axes: Axes,
    theme: Theme,
    style: LineStyle,
    name: str,
    runs: Sequence[Outcome],
    xs: Sequence[float],
    value: Callable[[Outcome], float],
) -> None:
    ys = [value(outcome) for outcome in runs]
    axes.plot(xs, ys, color=style.color, linestyle=style.dashes, linewidth=1.4, label=name)
    for x, y, outcome in zip(xs, ys, runs, strict=True):
        axes.plot(
            [x],
            [y],
            linestyle="none",
            marker=style.mark,
            markersize=6.5,
            color=style.color,
            fillstyle=_FILLINGS[outcome.verdict.mood],
            markerfacecolor=theme.background if outcome.verdict.mood == HOLDS else style.color,
            markerfacecoloralt=theme.background,
        )


def _label_places(axes: Axes, outcomes: Sequence[Outcome], places: dict[float | str, float]) -> None:
    """Whole powers of ten for the finite ones, words for the others."""
    finite = [places[key] for key in places if isinstance(key, float)]
    ticks: dict[float, str] = {}
    if finite:
        low, high = math.floor(min(finite)), math.floor(max(finite))
        step = max(1, math.ceil((high - low + 1) / 6))
        ticks = {float(power): f"{10.0**power:,g}" for power in range(low, high + 1, step)}
    others = {places[key]: key for key in places if isinstance(key, str)}
    ticks = {x: text for x, text in ticks.items() if all(abs(x - other) > 0.45 for other in others)}
    ticks |= {x: str(text) for x, text in others.items()}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(min([*places.values(), *ticks]) - 0.4, max(places.values()) + 0.4)
