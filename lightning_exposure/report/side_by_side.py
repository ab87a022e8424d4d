"""`SideBySide`: any runs beside each other: what was done against memorization, what it cost, and what it brought."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from lightning_exposure._checks import slug
from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.amounts import exposure_text, interval_text
from lightning_exposure.report.comparison import number
from lightning_exposure.report.record import Measurement, RunRecord
from lightning_exposure.report.tables import text_table
from lightning_exposure.report.verdicts import Verdict
from lightning_exposure.secrets import Canary

COLUMNS = ("run", "defences", "epsilon", "train loss", "val loss", "most exposed", "exposure", "interval", "guesses")
"""Of the table that people read."""

_CSV_COLUMNS = (
    "run", "defences", "epsilon", "train_loss", "val_loss", "canary", "copies", "exposure_bits", "exposure_low",
    "exposure_high", "is_bound", "method", "verdict",
)  # fmt: skip

PRIVACY = "differential privacy"
_LONGEST = 40


@dataclass(frozen=True)
class ComparedRun:
    """One run among others.

    Attributes:
        name: What it is called here.
        record: What it left behind.
    """

    name: str
    record: RunRecord

    @property
    def newest(self) -> Measurement | None:
        """The last measurement."""
        return self.record.final

    @property
    def defences(self) -> list[dict[str, Any]]:
        """What was done against memorization."""
        return defences_of(self.record)

    @property
    def defences_in_words(self) -> str:
        """The same in a line."""
        return "; ".join(map(in_words, self.defences)) or "none"

    @property
    def epsilon(self) -> float | None:
        """What was spent; None: nothing is promised."""
        return None if self.record.privacy is None else float(self.record.privacy.get("epsilon", math.inf))

    def loss(self, name: str) -> float | None:
        """The newest of the losses that are known, "train_loss" or "val_loss"."""
        known = (getattr(measurement, name) for measurement in reversed(self.record.history))
        return next((loss for loss in known if loss is not None and math.isfinite(loss)), None)

    @property
    def measured(self) -> list[tuple[Canary, ExposureEstimate | None, Verdict]]:
        """All canaries, also those of further callbacks, whose ids begin with the name of the callback."""
        found: list[tuple[Canary, ExposureEstimate | None, Verdict]] = []
        for name, part in {"": self.record, **self.record.others}.items():
            estimates, verdicts = part.final.estimates if part.final else {}, part.verdicts
            for canary in part.canaries:
                named = canary.replace(id=f"{slug(name)}.{canary.id}") if name else canary
                found.append((named, estimates.get(canary.id), verdicts[canary.id]))
        return found

    @property
    def exposures(self) -> list[tuple[Canary, ExposureEstimate]]:
        """Of the canaries that were inserted, those that are certain to be most exposed first."""
        inserted = [(canary, estimate) for canary, estimate, _ in self.measured if canary.copies and estimate]
        return sorted(inserted, key=lambda pair: -pair[1].low)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The largest lower end and the largest upper end; None if nothing was measured."""
        found = [estimate for _, estimate in self.exposures]
        return (max(e.low for e in found), max(e.high for e in found)) if found else None

    def verdict(self, canary: Canary) -> Verdict:
        """How many guesses find a canary."""
        return next(verdict for each, _, verdict in self.measured if each.id == canary.id)


@dataclass(frozen=True)
class SideBySide:
    """Two or more runs.

    Attributes:
        runs: In the order of the table.

    Raises:
        ArgumentError: There are fewer than two.

    Example:
        >>> from lightning_exposure.secrets import CanarySet, SecretFormat
        >>> record = RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1]))
        >>> SideBySide([ComparedRun("a", record), ComparedRun("b", record)]).verdict
        'Nothing was measured in a and b'
    """

    runs: Sequence[ComparedRun]

    def __post_init__(self) -> None:
        """One run has nothing to stand beside."""
        if len(self.runs) < 2:
            raise ArgumentError(
                f"runs has {len(self.runs)} of them; expected at least two to compare. Name another run."
            )

    @classmethod
    def load(cls, paths: Sequence[str | os.PathLike[str]]) -> SideBySide:
        """Read the records of some runs, from their directories or files.

        Raises:
            ManifestError: One of them is not a record; names the file.
            ArgumentError: There are fewer than two.
        """
        given = [Path(path) for path in paths]
        return cls([ComparedRun(name, RunRecord.load(path)) for name, path in zip(_names(given), given, strict=True)])

    @property
    def verdict(self) -> str:
        """One line for people: which run is less exposed, if their intervals tell."""
        silent = [run.name for run in self.runs if run.bounds is None]
        measured = [(run, run.bounds) for run in self.runs if run.bounds is not None]
        if len(measured) < 2:
            return f"Nothing was measured in {' and '.join(silent)}"
        least = min(measured, key=lambda pair: pair[1][1])
        others = [pair for pair in measured if pair is not least]
        if all(least[1][1] < low for _, (low, _) in others):
            closest = min(others, key=lambda pair: pair[1][0])
            return (
                f"{least[0].name} is the least exposed: at most {least[1][1]:.2f} bits, and {closest[0].name} has at "
                f"least {closest[1][0]:.2f}"
            )
        most = max(measured, key=lambda pair: pair[1][0])
        if all(most[1][0] > high for run, (_, high) in measured if run is not most[0]):
            bits = f"{most[1][0]:.2f}"
            return f"{most[0].name} is the most exposed, with at least {bits} bits; the others are not told apart"
        return "No run is shown to be less exposed than the others: their intervals overlap"

    @property
    def remarks(self) -> str:
        """What should be known about the comparison: are the canaries the same?"""
        kinds = {tuple(sorted((c.id, c.copies, c.format.pattern) for c, _, _ in run.measured)) for run in self.runs}
        return "" if len(kinds) == 1 else "The runs have different canaries, so that exposures compare only roughly."

    def rows(self) -> list[list[str]]:
        """The runs as text, in the order of `COLUMNS`."""
        return [_row(run) for run in self.runs]

    def table(self) -> str:
        """The runs under their headings."""
        return text_table(COLUMNS, self.rows())

    def canary_rows(self) -> list[list[str]]:
        """One row per canary: its copies, and its exposure in each run."""
        ids = dict.fromkeys(canary.id for run in self.runs for canary, _, _ in run.measured)
        found = []
        for key in ids:
            copies = sorted({c.copies for run in self.runs for c, _, _ in run.measured if c.id == key})
            cells = []
            for run in self.runs:
                estimate = next((found for canary, found, _ in run.measured if canary.id == key), None)
                cells.append("" if estimate is None else f"{exposure_text(estimate, 1)}, {interval_text(estimate, 1)}")
            found.append([key, " or ".join(map(str, copies)), *cells])
        return found

    def to_csv(self) -> str:
        """A line for each canary of each run, all digits kept; no text of a secret."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_CSV_COLUMNS)
        for run in self.runs:
            losses = [run.loss(name) for name in ("train_loss", "val_loss")]
            facts = [run.name, run.defences_in_words, run.epsilon, *losses]
            for canary, e in run.exposures:
                cells = [canary.id, canary.copies, e.bits, e.low, e.high, e.is_bound, e.method, run.verdict(canary)]
                writer.writerow(["" if cell is None else cell for cell in [*facts, *cells]])
        return text.getvalue()


def defences_of(record: RunRecord) -> list[dict[str, Any]]:
    """What was done against memorization, an entry each with a "name": differential privacy, and what the record lists.

    >>> from lightning_exposure.secrets import CanarySet
    >>> record = RunRecord(CanarySet([]), privacy={"epsilon": 3.0, "delta": 1e-5, "noise_multiplier": 1.1})
    >>> [entry["name"] for entry in defences_of(record)]
    ['differential privacy']
    """
    found = [dict(entry) for entry in record.defences]
    if record.privacy is not None and all(entry.get("name") != PRIVACY for entry in found):
        names = ("epsilon", "delta", "noise_multiplier", "max_grad_norm")
        known = {name: record.privacy[name] for name in names if record.privacy.get(name) is not None}
        if record.privacy.get("unit") == "user":
            known["for"] = "one user"
        found.insert(0, {"name": PRIVACY, **known})
    return found


def in_words(defence: Mapping[str, Any]) -> str:
    """A defence and its settings, as far as they are numbers or short words.

    >>> in_words({"name": "quantize", "levels": 256, "skipped": ["a"]})
    'quantize (levels 256)'
    """
    settings = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in plain_settings(defence).items()]
    name = str(defence.get("name", "unnamed"))
    return f"{name} ({', '.join(settings)})" if settings else name


def plain_settings(defence: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a defence that are numbers, truth values or short words: others may hold texts."""
    return {
        name: value
        for name, value in defence.items()
        if name != "name"
        and (isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _LONGEST))
    }


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(run: ComparedRun) -> list[str]:
    losses = [run.loss(name) for name in ("train_loss", "val_loss")]
    cells = [run.name, run.defences_in_words, "none" if run.epsilon is None else number(run.epsilon)]
    cells += ["" if loss is None else f"{loss:.3f}" for loss in losses]
    if not run.exposures:
        return [*cells, "", "not measured", "", ""]
    canary, estimate = run.exposures[0]
    return [
        *cells,
        canary.id,
        exposure_text(estimate, 2, ">= "),
        interval_text(estimate, 2),
        run.verdict(canary).short,
    ]


def _names(paths: Sequence[Path]) -> list[str]:
    """As short as they can be and still differ; a directory may be given twice.

    >>> _names([Path("runs/a"), Path("runs/b/exposure.json")]), _names([Path("x/run"), Path("y/run")])
    (['a', 'b'], ['x/run', 'y/run'])
    """
    directories = [(path.parent if path.suffix == ".json" else path).absolute() for path in paths]
    for length in range(1, 1 + max(len(directory.parts) for directory in directories)):
        names = ["/".join(directory.parts[-length:]) for directory in directories]
        if len(set(names)) == len(set(directories)):
            break
    return [name if names.count(name) == 1 else f"{name} ({names[:i].count(name) + 1})" for i, name in enumerate(names)]
