"""`write_comparison`: a comparison as one page of HTML."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_exposure._files import write_whole
from lightning_exposure.report.amounts import end_text
from lightning_exposure.report.comparison import Comparison, number
from lightning_exposure.report.figures.against_epsilon import exposure_against_epsilon
from lightning_exposure.report.pages import _contents as contents
from lightning_exposure.report.pages._template import Picture, in_all_sizes, page_path, render_page
from lightning_exposure.report.verdicts import HOLDS, LEAKS, UNKNOWN

_TERMS = (
    (
        "Epsilon",
        "The promise of differential privacy, for one record of the training data: whatever someone sees of the model, "
        "it is at most e^epsilon times as likely with the record as without it. Smaller is safer. A secret that stands "
        "k times in the data is k records, and is promised only k times as large an epsilon.",
    ),
    (
        "Clip only",
        "Every example's gradient is cut to the same largest norm, and no noise is added. It promises nothing, but an "
        "example that stands alone pulls less.",
    ),
    ("Noise", "The noise multiplier: the standard deviation of the noise, in units of the clipping norm."),
)
_SHARED = ("Canary", "Rank", "Guesses", "Exposure", "Interval")

_MOODS = {LEAKS: "the secret can be extracted", HOLDS: "that is ruled out", UNKNOWN: "unknown"}


def write_comparison(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write a comparison as one self-contained page.

    Args:
        comparison: The outcomes.
        path: The file, or the directory of the comparison, where it is called `report.html`.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: Matplotlib or Jinja2 is not installed.
    """
    target = page_path(path)
    write_whole(target, render(comparison))
    return target


def render(comparison: Comparison) -> str:
    """The page as a string."""
    glossary = [*_TERMS, *(pair for pair in contents.GLOSSARY if pair[0] in _SHARED)]
    return render_page(
        "comparison.html",
        # The colour is that of the training runs with privacy, and so is what stands first.
        verdict=comparison.with_privacy,
        remarks=f"{comparison.without_privacy}.",
        shade=comparison.shade,
        meaning=[
            "The same model was trained on the same text with the same secret in it, once for each row below. What "
            "differs is how much of a single example may show in the weights."
        ],
        facts=_facts(comparison),
        pictures=[_picture(comparison)] if comparison.outcomes else [],
        rows=[(cells, outcome) for cells, outcome in zip(comparison.rows(), comparison.outcomes, strict=True)],
        foundations=contents.foundations((f"{o.optimizer} {o.privacy}", o.exposure) for o in comparison.outcomes),
        settings=contents.setting_rows(comparison.settings),
        glossary=glossary,
    )


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    outcomes = comparison.outcomes
    moods = [outcome.verdict.mood for outcome in outcomes]
    return [
        ("training runs", f"{len(outcomes)}"),
        *((words, f"{moods.count(mood)}") for mood, words in _MOODS.items()),
        ("time spent training", contents.duration(sum(outcome.seconds for outcome in outcomes))),
    ]


def _picture(comparison: Comparison) -> Picture:
    ends = "; ".join(
        f"{outcome.optimizer} {outcome.privacy} (epsilon {number(outcome.epsilon)}) "
        f"{end_text(outcome.exposure)}, {outcome.verdict.short}"
        for outcome in comparison.outcomes
    )
    return Picture(
        title="Exposure and test loss against epsilon",
        alt=f"Exposure in bits for each setting: {ends}.",
        caption="Above what privacy buys, below what it costs. A filled mark is a secret that can be extracted, a "
        "hollow one a secret for which that is ruled out, half a mark one of which neither is known. Lines go through "
        "the low ends of the intervals: at least so exposed. Settings that promise nothing stand at the right.",
        sources=in_all_sizes(lambda theme, width: exposure_against_epsilon(comparison, theme=theme, width=width)),
    )
