"""What a benchmark returns, rows with a number and a target; and how a table of them looks."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {"at least": operator.ge, "below": operator.lt}
)
_HEADER = ("what", "measured", "target", "met", "beside it")


@dataclass(frozen=True)
class Target:
    """What a number has to be, `relation` being "at least" or "below"."""

    relation: str
    limit: float

    def met(self, value: float) -> bool:
        # A NaN meets no target: both comparisons are false.
        return _RELATIONS[self.relation](value, self.limit)


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        what: What was measured.
        value: What came out.
        unit: "x", "%", "s", "GiB", "bits", or a noun for a count.
        target: What was promised; None for a number that is only there to compare with.
        beside: What helps to judge the number.
    """

    what: str
    value: float
    unit: str
    target: Target | None = None
    beside: str = ""

    @property
    def missed(self) -> bool:
        return self.target is not None and not self.target.met(self.value)

    def cells(self) -> tuple[str, ...]:
        target = "" if self.target is None else f"{self.target.relation} {_limit(self.target.limit, self.unit)}"
        met = "" if self.target is None else "NO" if self.missed else "yes"
        return (self.what, amount(self.value, self.unit), target, met, self.beside)


def amount(value: float, unit: str) -> str:
    """A number with its unit, with as many digits as anyone can use."""
    if unit == "x":
        return f"{value:,.1f}x" if value < 100 else f"{value:,.0f}x"
    if unit == "%":
        return f"{value:.0f}%"
    if unit in ("s", "GiB", "bits"):
        return f"{value:.3f} {unit}" if value >= 0.001 or value == 0 else f"{value:.1e} {unit}"
    return f"{value:,.0f} {unit}"


def _limit(value: float, unit: str) -> str:
    return f"{value:,.9g}" + (unit if unit in ("x", "%") else f" {unit}")


def as_text(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    lines = [_HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([padded[0], "  ".join("-" * width for width in widths), *padded[1:]])


def as_markdown(rows: Sequence[Row]) -> str:
    """The table for documentation."""
    lines = [_HEADER, ("---", "---:", "---:", "---", "---"), *(row.cells() for row in rows)]
    # A bar would end the cell, also inside code.
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
