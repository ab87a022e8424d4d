"""`write_side_by_side`: any runs beside each other as one page of HTML."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_exposure._files import write_whole
from lightning_exposure.report.figures.run_exposures import exposures_of_runs
from lightning_exposure.report.pages import _contents as contents
from lightning_exposure.report.pages._template import Picture, in_all_sizes, page_path, render_page
from lightning_exposure.report.side_by_side import COLUMNS, ComparedRun, SideBySide
from lightning_exposure.report.verdicts import UNKNOWN

_TERMS = (
    (
        "Defence",
        "What was done against memorization in a run: differential privacy, and whatever else the run noted in its "
        "record, such as a text that was sanitized or weights that were quantized.",
    ),
    (
        "Epsilon",
        "The promise of differential privacy, for one record of the training data; for one user with all records where "
        "the defence says so. Smaller is safer; none is promised without it.",
    ),
)
_SHARED = ("Canary", "Rank", "Guesses", "Exposure", "Interval")


def write_side_by_side(comparison: SideBySide, path: str | os.PathLike[str]) -> Path:
    """Write runs beside each other as one self-contained page. It names canaries by their ids: no secret is on it.

    Args:
        comparison: The runs.
        path: The file, or a directory, where it is called `report.html`.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: Matplotlib or Jinja2 is not installed.
    """
    target = page_path(path)
    write_whole(target, render(comparison))
    return target


def render(comparison: SideBySide) -> str:
    """The page as a string."""
    runs = comparison.runs
    return render_page(
        "side_by_side.html",
        verdict=comparison.verdict,
        remarks=comparison.remarks,
        shade=UNKNOWN,  # of several models there is no one colour
        meaning=[
            "Each row below is a training run of its own. What was done in it against memorization stands beside how "
            "exposed its most exposed canary is, and beside what that cost in loss."
        ],
        facts=[("runs", f"{len(runs)}"), ("with a defence", f"{sum(bool(run.defences) for run in runs)}")],
        pictures=[_picture(comparison)],
        columns=[name[:1].upper() + name[1:] for name in COLUMNS],
        rows=[(cells, _shade(run)) for cells, run in zip(comparison.rows(), runs, strict=True)],
        foundations=contents.foundations((run.name, run.exposures[0][1]) for run in runs if run.exposures),
        names=[run.name for run in runs],
        canaries=comparison.canary_rows(),
        glossary=[*_TERMS, *(pair for pair in contents.GLOSSARY if pair[0] in _SHARED)],
    )


def _shade(run: ComparedRun) -> str:
    return run.verdict(run.exposures[0][0]).shade if run.exposures else UNKNOWN


def _picture(comparison: SideBySide) -> Picture:
    ends = "; ".join(
        f"{run.name} ({run.defences_in_words}) "
        + ("not measured" if run.bounds is None else f"{run.bounds[0]:.1f} to {run.bounds[1]:.1f}")
        for run in comparison.runs
    )
    return Picture(
        title="Exposure and validation loss",
        alt=f"Largest exposure of each run, in bits: {ends}.",
        caption="The filled mark is the largest lower end: at least so exposed; the line goes to the largest upper "
        "end. Hollow marks are the other canaries. The dashed line is as exposed as a canary can be.",
        sources=in_all_sizes(lambda theme, width: exposures_of_runs(comparison, theme=theme, width=width)),
    )
