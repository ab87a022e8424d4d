"""`Study`: a grid of trainings, the table that comes of it, and what the paper reports beside it.

A study is one file of `memorization/`, `attacks/` or `defences/` (or of your own, with `lightning-exposure --import`)
that registers itself::

    def train(cell: Cell) -> Row:
        ...                                   # one training with cell.settings; randomness from cell.random_seed
        return {"test_loss": 1.62, "exposure_bits": 19.9}

    STUDIES.register("capacity")(
        Study(
            title="Exposure by batch size and units",
            source="Carlini et al., Table 2",
            claim="The more units and the larger the batches, the more is memorized.",
            scales={"tiny": Scale(...), "cpu": Scale(...), "paper": Scale(...)},
            train=train,
            results=(Column("test_loss", digits=3), Column("exposure_bits")),
            paper=(PaperTable(...),),
            draw=draw,
        )
    )

Everything else (processes, files, resuming, seeds, averages, intervals, pages) is the engine's. `training.py` trains
and measures a language model in one call, `figures.py` draws means with intervals, `equal_loss.py` picks checkpoints of
equal loss.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from lightning_exposure._checks import choice, refusal, whole_number
from lightning_exposure._files import plain
from lightning_exposure._registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = str | int | float | bool | None
"""What stands in a cell of a table; None is an empty one."""

Row = Mapping[str, Value]
"""A row of a table, by column."""

ScaleName = Literal["tiny", "cpu", "paper"]

SCALES: tuple[ScaleName, ...] = ("tiny", "cpu", "paper")
"""From seconds to days: for tests, for the documentation, and as the paper did it."""

ERROR = "error"
"""The column that says why a cell failed."""


@dataclass(frozen=True)
class Column:
    """One of the numbers that a training gives.

    Args:
        name: What it is called in tables.
        over_seeds: What the summary says of it: the "mean" with a t interval, the "share" of trainings in which it is
            true with a Clopper-Pearson interval, the "median" of what spans many orders of magnitude, or nothing
            ("leave out").
        digits: After the decimal point, where people read it.
        least: What it can't be below; an interval of Student's knows nothing of it, and is cut there.
        most: What it can't be above, or the column that says so.
        share_of: Of a "share" that is a share in each training already: the column that says of how many. The interval
            then takes into account that what one training does to its secrets may be alike.
    """

    name: str
    over_seeds: Literal["mean", "share", "median", "leave out"] = "mean"
    digits: int = 2
    least: float | None = None
    most: float | str | None = None
    share_of: str | None = None


@dataclass(frozen=True)
class Scale:
    """What is trained at one scale.

    Args:
        settings: What all trainings share, as JSON types; among them `characters`, how much of the text is used.
        grid: What differs between them, one mapping each, in the order of the table; `product` makes them.
        seeds: How many trainings with each.
        cost: What it takes, in words.

    Example:
        >>> Scale({"epochs": 2}, product(units=[8, 16]), seeds=3, cost="5 s").grid
        ({'units': 8}, {'units': 16})
    """

    settings: Mapping[str, Any]
    grid: Sequence[Mapping[str, Any]]
    seeds: int
    cost: str


@dataclass(frozen=True)
class PaperTable:
    """What a paper reports, word for word.

    Args:
        title: Which table, figure or section.
        columns: Its headings.
        rows: Its cells, as printed.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Cell:
    """One training: its settings, and where its randomness comes from.

    Args:
        study: The study's name.
        settings: Those of the scale and those of the grid together.
        seed: Which of the trainings with these settings: 0, 1, 2...
        text: What is trained on.

    Example:
        >>> cell = Cell("capacity", {"units": 8, "characters": 3}, seed=0, text="abcdef")
        >>> cell.training_text, cell.random_seed == Cell("capacity", {"characters": 3, "units": 8}, 0).random_seed
        ('abc', True)
        >>> cell.random_seed == Cell("capacity", {"units": 16}, 0).random_seed
        False
    """

    study: str
    settings: Mapping[str, Any]
    seed: int
    text: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        """Names the cell by its settings, whatever their order and its own place in the grid."""
        return _digest([self.study, self.settings, self.seed])

    @property
    def random_seed(self) -> int:
        """Of weights, batches and walks: another one for every cell."""
        return int(self.key[:7], 16)

    @property
    def secret_seed(self) -> int:
        """Of secrets and their places: the same for all settings, so that only the settings differ."""
        return int(_digest([self.study, self.seed])[:7], 16)

    @property
    def training_text(self) -> str:
        """As much of the text as the settings ask for."""
        return self.text[: self.settings["characters"]] if "characters" in self.settings else self.text


def _digest(content: object) -> str:
    encoded = json.dumps(plain(content, "settings"), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(encoded.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class Study:
    """A grid of trainings, a table and a figure; registered in `STUDIES` under its name.

    Args:
        title: What it is about, in a line.
        source: The table, figure or section of the paper.
        claim: What the paper says, in a sentence.
        scales: What is trained at each of the scales.
        train: Trains one cell: returns one row, or several that differ in `keys`. Everything random in it comes from
            `cell.random_seed` and `cell.secret_seed`; it leaves nothing on disk.
        results: The columns that `train` fills.
        keys: Columns that tell the rows of one training apart, such as "epoch".
        paper: What the paper reports, to stand beside our table.
        draw: Makes the figure, of the table and of its summary.
        summarize: Makes the summary of the rows of all trainings that did not fail; None: over the seeds.
        findings: Says in sentences what a table can't: tests, correlations, the epoch of something.
    """

    title: str
    source: str
    claim: str
    scales: Mapping[ScaleName, Scale]
    train: Callable[[Cell], Row | Sequence[Row]]
    results: Sequence[Column]
    keys: Sequence[str] = ()
    paper: Sequence[PaperTable] = ()
    draw: Callable[[Sequence[Row], Sequence[Row]], Figure] | None = None
    summarize: Callable[[Study, Sequence[Row]], list[dict[str, Value]]] | None = None
    findings: Callable[[Sequence[Row]], list[str]] | None = None

    def scale(self, name: str) -> Scale:
        """What is trained at a scale.

        Raises:
            ArgumentError: There is no such scale.
        """
        return self.scales[choice("--scale", name, self.scales)]

    @property
    def factors(self) -> tuple[str, ...]:
        """What the grid varies, at any scale, in the order of the table's columns."""
        names = (name for scale in self.scales.values() for place in scale.grid for name in place)
        return tuple(dict.fromkeys(names))

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table, from left to right."""
        return (*self.factors, "seed", *self.keys, *(column.name for column in self.results), ERROR)

    def cells(self, name: str, scale: str, seeds: int | None = None, text: str = "") -> list[Cell]:
        """All trainings, in the order of the table.

        Args:
            name: The study's.
            scale: Which.
            seeds: How many trainings with each settings; None: as many as the scale says.
            text: What is trained on.

        Raises:
            ArgumentError: There is no such scale, or a cell would train on more than one process.
        """
        chosen = self.scale(scale)
        count = whole_number("--seeds", chosen.seeds if seeds is None else seeds, at_least=1)
        cells = [Cell(name, {**chosen.settings, **place}, seed, text) for place in chosen.grid for seed in range(count)]
        for cell in cells:
            _refuse_many_processes(cell.settings, "")
        return cells


STUDIES: Registry[Study] = Registry("study")
"""Every study, by its name."""

_ONE_PROCESS: dict[str, tuple[Any, ...]] = {
    "strategy": ("auto", "single_device", None),
    "devices": (1, "1", [0], "auto", None),
    "num_nodes": (1, None),
}


def _refuse_many_processes(settings: Mapping[str, Any], where: str) -> None:
    """A cell is one process: DDP inside of it would start the whole study again in each of its processes."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _refuse_many_processes(value, f"{where}{name}.")
        elif name in _ONE_PROCESS and value not in _ONE_PROCESS[name]:
            expected = f"one of {', '.join(map(repr, _ONE_PROCESS[name]))}, because a cell trains in one process"
            remedy = "Leave DDP out of the cells: more of them run at a time with --workers."
            raise refusal(f"{where}{name}", value, expected, remedy)


def product(**values: Iterable[Any]) -> tuple[dict[str, Any], ...]:
    """Every combination of the values, the last one varying fastest.

    >>> product(batch=[16, 32], units=[8])
    ({'batch': 16, 'units': 8}, {'batch': 32, 'units': 8})
    """
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))
