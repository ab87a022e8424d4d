"""How figures look: two themes, colours and marks for the colour-blind, labels at the ends of lines, and saving."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from lightning_exposure._checks import choice, refusal
from lightning_exposure._files import write_whole
from lightning_exposure.errors import ExposureError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT_SIZE = 9.0
"""In points, of everything but titles."""

NAMED = 6
"""So many series can be told apart in one figure."""

# A line each: colour, mark and dashes all differ, so that no one depends on the colours.
_MARKS = ("o", "s", "^", "D", "v", "P")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)), (0, (3, 1.5)), (0, (8, 2, 1.5, 2, 1.5, 2)))


# From the middle of the label's left edge, not through the label.
_LEADER = {"arrowstyle": "-", "linewidth": 0.6, "alpha": 0.7, "relpos": (0.0, 0.5), "shrinkA": 1.0, "shrinkB": 3.0}


class MissingExtraError(ExposureError, ImportError):
    """A package of the extra `report` is not installed."""


@dataclass(frozen=True)
class Theme:
    """The colours of a figure; `lines` is from the Okabe-Ito palette, in the order that suits the background."""

    background: str
    text: str
    muted: str
    grid: str
    lines: tuple[str, ...]


ThemeName = Literal["light", "dark"]

THEMES: Mapping[ThemeName, Theme] = MappingProxyType(
    {
        "light": Theme(
            background="#ffffff",
            text="#1b1f24",
            muted="#5c6670",
            grid="#e3e7eb",
            lines=("#0072b2", "#d55e00", "#009e73", "#a8447f", "#b27700", "#2a8cc4"),
        ),
        "dark": Theme(
            background="#15191e",
            text="#e6eaee",
            muted="#9aa5b0",
            grid="#2b323a",
            lines=("#56b4e9", "#e69f00", "#1fbf92", "#d992bb", "#f0e442", "#f0762b"),
        ),
    }
)
"""By name."""


@dataclass(frozen=True)
class LineStyle:
    """How one series is told from the others."""

    color: str
    mark: str
    dashes: Any


def require(package: str) -> Any:
    """Import a package of the extra `report`.

    Raises:
        MissingExtraError: It is not installed; says how to install it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"reports need {package.partition('.')[0]}, which is not installed ({error}); expected the packages of the "
            'extra `report`. Install them: pip install "lightning-exposure[report]".'
        ) from error


def theme_named(name: ThemeName) -> Theme:
    """The theme; ArgumentError if there is none of this name."""
    return THEMES[choice("theme", name, THEMES)]


def line_style(theme: Theme, place: int) -> LineStyle:
    """The style of the series at a place; repeats after six."""
    return LineStyle(theme.lines[place % len(theme.lines)], _MARKS[place % len(_MARKS)], _DASHES[place % len(_DASHES)])


def new_figure(theme: Theme, width: float, height: float) -> Figure:
    """A figure that belongs to no one else: pyplot, and with it every global state, is left out of this."""
    require("matplotlib.figure")
    figure: Figure = import_module("lightning_exposure.report.figures._shown").ShownFigure(
        figsize=(width, height), layout="constrained", facecolor=theme.background
    )
    return figure


def dress(axes: Axes, theme: Theme, *, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """Titles, colours and a quiet grid."""
    axes.set_facecolor(theme.background)
    axes.set_title(title, loc="left", fontsize=FONT_SIZE + 2, fontweight="bold", color=theme.text)
    axes.set_xlabel(xlabel, fontsize=FONT_SIZE, color=theme.muted)
    axes.set_ylabel(ylabel, fontsize=FONT_SIZE, color=theme.muted)
    axes.tick_params(which="both", colors=theme.muted, labelsize=FONT_SIZE, length=0)
    axes.grid(True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme.muted)


def label_ends(axes: Axes, theme: Theme, ends: Sequence[tuple[float, float, str, str]], height: float) -> None:
    """Write each series' name right of its last point, moved up or down so that no two overlap.

    Args:
        axes: Its limits have to be final.
        theme: The colours.
        ends: Of each series the last x and y, the label, and the colour.
        height: Of the axes, in inches, about.
    """
    low, high = axes.get_ylim()
    wanted = [(y - low) / (high - low) for _, y, _, _ in ends]
    places = spread(wanted, gap=1.35 * FONT_SIZE / (72.0 * height))
    for (x, y, label, color), want, place in zip(ends, wanted, places, strict=True):
        moved = abs(place - want) > 1e-3
        axes.annotate(
            label,
            xy=(x, y),
            xytext=(1.02, place),
            textcoords="axes fraction",
            va="center",
            fontsize=FONT_SIZE,
            color=color,
            annotation_clip=False,
            arrowprops={**_LEADER, "color": color} if moved else None,
        )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places between 0 and 1, at least `gap` apart and close to those wanted, in the order given.

    Neighbours that are too close move apart around their common middle, as often as it takes. If there are too many,
    they go on past 1.

    >>> [round(place, 2) for place in spread([0.5, 0.5, 0.9], gap=0.1)]
    [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    blocks: list[list[int]] = []

    def start(block: list[int]) -> float:
        length = gap * (len(block) - 1)
        middle = sum(wanted[i] for i in block) / len(block)
        return max(0.0, min(1.0 - length, middle - length / 2))

    for i in order:
        blocks.append([i])
        while len(blocks) > 1 and start(blocks[-2]) + gap * len(blocks[-2]) > start(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    places = [0.0] * len(wanted)
    for block in blocks:
        first = start(block)
        for position, i in enumerate(block):
            places[i] = first + gap * position
    return places


def legend(axes: Axes, theme: Theme, **where: Any) -> None:
    """A legend without a box around it."""
    axes.legend(frameon=False, fontsize=FONT_SIZE, labelcolor=theme.text, **where)


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as PNG or SVG, whichever the path ends with; the same figure gives the same file.

    Raises:
        ArgumentError: The path ends with neither.

    Example:
        >>> import tempfile
        >>> from lightning_exposure.report.figures.paper import rank_agreement
        >>> save(rank_agreement([(5895, 6011.4, "importance")]), Path(tempfile.mkdtemp()) / "ranks.svg").name
        'ranks.svg'
    """
    target = Path(path)
    if target.suffix.lower() not in (".png", ".svg"):
        raise refusal("path", str(path), "a name that ends with .png or .svg")
    write_whole(target, to_bytes(figure, target.suffix.lower()[1:]))
    return target


def to_bytes(figure: Figure, kind: str) -> bytes:
    """A figure as the content of a file of this kind ("png" or "svg")."""
    content = BytesIO()
    # Without a salt and with a date, no two files would be the same.
    with require("matplotlib").rc_context({"svg.hashsalt": "lightning-exposure", "svg.fonttype": "path"}):
        figure.savefig(content, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return content.getvalue()
