"""`write_report`: a run as one page of HTML that needs nothing else, not even a network."""

from __future__ import annotations

import math
import os
from pathlib import Path

from lightning_exposure._files import write_whole
from lightning_exposure.report.amounts import (
    end_text,
    exposure_text,
    interval_text,
    margin_text,
    rank_text,
    rests_on,
)
from lightning_exposure.report.figures import paper as plots
from lightning_exposure.report.pages import _contents as contents
from lightning_exposure.report.pages._template import Picture, in_all_sizes, page_path, render_page
from lightning_exposure.report.record import RunRecord


def write_report(record: RunRecord, path: str | os.PathLike[str]) -> Path:
    """Write a run as one self-contained page: the verdict first, then plots, tables, settings and a glossary.

    Args:
        record: The run.
        path: The file, or the directory of the run, where it is called `report.html`.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: Matplotlib or Jinja2 is not installed.

    Example:
        >>> import tempfile
        >>> from lightning_exposure.secrets import CanarySet, SecretFormat
        >>> record = RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4]))
        >>> write_report(record, tempfile.mkdtemp()).name
        'report.html'
    """
    target = page_path(path)
    write_whole(target, render(record))
    return target


def render(record: RunRecord) -> str:
    """The page as a string."""
    headline, _, remarks = record.verdict.partition("; ")
    rows = contents.canary_rows(record)
    return render_page(
        "run.html",
        verdict=headline,
        remarks=remarks[:1].upper() + remarks[1:],
        shade=contents.shade(record),
        meaning=contents.meaning(record),
        facts=contents.facts(record),
        pictures=pictures(record),
        canaries=rows,
        foundations=contents.foundations((row.canary.id, row.estimate) for row in rows if row.estimate),
        exposure=exposure_text,
        interval=interval_text,
        rank=rank_text,
        margin=margin_text,
        rests_on=rests_on,
        attacks=contents.attack_rows(record),
        settings=contents.setting_rows(record.settings),
        glossary=contents.glossary(record),
        duration=contents.duration,
    )


def pictures(record: RunRecord) -> list[Picture]:
    """The plots of a run; those that there is no data for are left out."""
    found = []
    if any(measurement.estimates for measurement in record.history):
        found.append(
            Picture(
                title="Exposure over training",
                alt=_history_in_words(record),
                caption=f"Exposure of the canaries{_against(record)}, and the losses below. "
                "Lines are drawn at the low ends: at least so exposed; the shades reach to the high ends. Hollow "
                "marks are lower bounds. Exposure that rises while the validation loss still falls is memorization, "
                "not overfitting.",
                sources=in_all_sizes(
                    lambda theme, width: plots.exposure_over_training(record, theme=theme, width=width)
                ),
            )
        )
    return found + [
        _references_picture(record, name)
        for name, references in record.references.items()
        if any(map(math.isfinite, references.costs))
    ]


def _references_picture(record: RunRecord, name: str) -> Picture:
    estimates = record.final.estimates if record.final else {}
    costs = {
        canary.id: estimates[canary.id].log_perplexity
        for canary in record.canaries
        if canary.format.name == name and canary.id in estimates
    }
    references, names = record.references[name], plots.highlighted(record)
    drawn = [cost for cost in references.costs if math.isfinite(cost)]
    placed = ", ".join(f"{key} {costs[key]:.1f}" for key in names if math.isfinite(costs.get(key, math.inf)))
    return Picture(
        title=f"Ordinary secrets and canaries: {name}",
        alt=f"Histogram of the log-perplexities of {len(drawn):,} secrets drawn uniformly from the format "
        f"{name}, between {min(drawn):.1f} and {max(drawn):.1f} bits."
        + (f" Canaries, in bits: {placed}." if placed else ""),
        caption="A canary left of all the others is more likely than any secret drawn.",
        sources=in_all_sizes(
            lambda theme, width: plots.reference_histogram(
                references, costs, highlight=names, title="", theme=theme, width=width
            )
        ),
    )


def _against(record: RunRecord) -> str:
    prior = contents.prior_in_words(record)
    return f", against the prior of {prior}" if prior else ""


def _history_in_words(record: RunRecord) -> str:
    """The end of each line that has a name."""
    final = record.history[-1]
    ends = ", ".join(f"{key} {end_text(final.estimates[key])}" for key in plots.highlighted(record))
    return f"Lines of exposure over training, in bits. At the end, after epoch {final.epoch}: {ends}."
