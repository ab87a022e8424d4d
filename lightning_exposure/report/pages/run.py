"""`write_report`: a run as one page of HTML that needs nothing else, not even a network; and for a model card."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from lightning_exposure._files import write_whole
from lightning_exposure.report import amounts
from lightning_exposure.report._advice import advice
from lightning_exposure.report.figures import paper as plots
from lightning_exposure.report.pages import _answers as answers
from lightning_exposure.report.pages import _card as card
from lightning_exposure.report.pages import _contents as contents
from lightning_exposure.report.pages._template import Picture, in_all_sizes, page_path, render_page
from lightning_exposure.report.record import RunRecord
from lightning_exposure.report.recording import is_first_process, run_record
from lightning_exposure.secrets import Redaction


def write_report(
    run: RunRecord | Any, directory: str | os.PathLike[str], *, shared: bool = False, reveal: bool = False
) -> Path:
    """Write everything that is known of a run: a page, its record, and a section for a model card.

    In the directory are then `report.html`, self-contained, with the verdict first; `exposure.json`, the record, from
    which the page can be made again; and `model-card.md`, a section in Markdown without any secret. Canaries, which are
    made up, are shown in full, so nobody but you may read the first two; candidates of an attack that are no canary are
    masked.

    With several processes, call it in each of them; the first writes.

    Args:
        run: A Trainer of Lightning or of transformers, after or during training; anything else with a method
            `add_to_record`; or a `RunRecord`.
        directory: Where; it is made if need be. Or the file of the page, `....html`: then only the page is written.
        shared: Whether the page is to be passed on: then canaries are masked too, and no record is written.
        reveal: Whether to show all secrets in full.

    Returns:
        The path of the page.

    Raises:
        ArgumentError: No callback of the Trainer has anything to say.
        MissingExtraError: Matplotlib or Jinja2 is not installed.

    Example:
        >>> import tempfile
        >>> from lightning_exposure.secrets import CanarySet, SecretFormat
        >>> record = RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1, 4]))
        >>> page = write_report(record, tempfile.mkdtemp())
        >>> sorted(path.name for path in page.parent.iterdir())
        ['exposure.json', 'model-card.md', 'report.html']
    """
    record = run if isinstance(run, RunRecord) else run_record(run)
    target = page_path(directory, "directory")
    if not is_first_process(run):
        return target
    redaction = Redaction((canary for canary, _ in record.judged), shared=shared, reveal=reveal)
    page = render(record, redaction)
    whole = target != Path(directory)
    if whole and not shared:
        record.save(target.parent, reveal=reveal)
    write_whole(target, page, private=redaction.private)
    if whole:
        write_whole(target.parent / card.FILE_NAME, card.model_card(record))
    return target


def render(record: RunRecord, redaction: Redaction | None = None) -> str:
    """The page as a string.

    Args:
        record: The run.
        redaction: Which texts are shown in full; None: as on this machine.
    """
    redaction = Redaction(canary for canary, _ in record.judged) if redaction is None else redaction
    headline, _, remarks = record.verdict.partition("; ")
    return render_page(
        "run.html",
        record=record,
        verdict=headline,
        remarks=remarks[:1].upper() + remarks[1:],
        shade=contents.shade(record),
        meaning=contents.meaning(record),
        facts=contents.facts(record),
        date=answers.date_in_words(record),
        steps=advice(record),
        answers=answers,
        text=amounts,
        duration=contents.duration,
        pictures=pictures(record),
        parts=[contents.part_of(name, part) for name, part in (("", record), *record.others.items())],
        shown=redaction.text,
        masked=redaction.shared and not redaction.reveal,
        settings=contents.setting_rows(record.settings),
        glossary=contents.glossary(record),
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
    ends = ", ".join(f"{key} {amounts.end_text(final.estimates[key])}" for key in plots.highlighted(record))
    return f"Lines of exposure over training, in bits. At the end, after epoch {final.epoch}: {ends}."
