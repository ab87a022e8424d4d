"""`write_release`: what generated texts give away, as one page of HTML."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_exposure._files import plain, write_whole
from lightning_exposure.report.pages import _contents as contents
from lightning_exposure.report.pages._template import page_path, render_page
from lightning_exposure.report.release import CANARY_COLUMNS, COUNT_COLUMNS, SCORER_COLUMNS, SyntheticAudit
from lightning_exposure.report.verdicts import LEAKS, UNKNOWN

_MOST = 50
"""So many canaries are on the page: those with the highest scores."""

_TERMS = (
    (
        "Epsilon",
        "The promise of differential privacy, for one record of the training data: whatever someone sees, it is at "
        "most e^epsilon times as likely with the record as without it. The number here is a lower bound: so much the "
        "release gives away at least. A small one is no proof of privacy. The generator gives away at least as much as "
        "its texts do.",
    ),
    (
        "Coins",
        "A fair coin said for each canary whether it went into the training data. Those that were held out are the "
        "measure: whatever the texts have of them, they have by chance.",
    ),
    (
        "Scorer",
        "A small model that is trained on the generated texts alone, and says how well each canary fits in. It is not "
        "told which of them were in the training data.",
    ),
    (
        "Score",
        "How much the texts speak for a canary, in standard deviations of other secrets of its format, which nobody "
        "was trained on.",
    ),
    (
        "Epsilon, alone",
        "The bound that a scorer would have given if it had been chosen beforehand. The largest of them is no bound; "
        "that of all together is.",
    ),
    (
        "p-value",
        "How likely it is that coins alone put so many of the canaries that were found into the training data.",
    ),
)


def write_release(found: SyntheticAudit, path: str | os.PathLike[str], *, reveal: bool = False) -> Path:
    """Write the audit of a release as one self-contained page.

    Args:
        found: What was found.
        path: The file, or a directory, where it is called `report.html`.
        reveal: Whether to show the canaries. Nobody but the owner may read the file then.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    target = page_path(path)
    write_whole(target, render(found, reveal=reveal), private=reveal)
    return target


def render(found: SyntheticAudit, *, reveal: bool = False) -> str:
    """The page as a string."""
    level = f"{100 * found.confidence:.4g}% confidence, delta {found.delta:g}"
    shown = f"The texts show an epsilon of at least {found.epsilon_lower:.2f}"
    return render_page(
        "release.html",
        verdict=shown if found.leaks else "Nothing is shown about single records",
        remarks=level,
        # Never green: that nothing was shown is no proof that there is nothing.
        shade=LEAKS if found.leaks else UNKNOWN,
        meaning=[found.summary(), f"It assumes {found.assumption}."],
        facts=[
            ("texts", f"{found.texts:,}"),
            ("characters", f"{found.characters:,}"),
            ("canaries trained on", f"{found.combined.inserted:,}"),
            ("canaries held out", f"{found.combined.held_out:,}"),
        ],
        scorer_columns=SCORER_COLUMNS,
        scorers=found.scorer_rows(),
        count_columns=COUNT_COLUMNS,
        counts=found.count_rows(),
        spans=found.span_note() or "Training texts were not given, so that copies of them were not counted.",
        canary_columns=CANARY_COLUMNS,
        canaries=found.canary_rows(reveal=reveal, most=_MOST),
        left_out=max(0, len(found.canaries) - _MOST),
        settings=contents.setting_rows(plain(found.settings, "settings")),
        glossary=[*_TERMS, *(pair for pair in contents.GLOSSARY if pair[0] == "Canary")],
        masked=not reveal,
    )
