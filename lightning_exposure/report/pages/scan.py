"""`write_scan`: which secrets of some texts a model has memorized, as one page of HTML."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_exposure._files import plain, write_whole
from lightning_exposure.report.pages import _contents as contents
from lightning_exposure.report.pages._template import page_path, render_page
from lightning_exposure.report.scan import NOT_CALIBRATED, Scan, ScannedSecret, names_of
from lightning_exposure.report.verdicts import LEAKS, LIKELY, UNKNOWN

_TERMS = (
    (
        "Against a prior",
        "Real secrets are not drawn at random: some birthdays and area codes are likelier than others, and a model "
        "likes them without ever having seen this one. The reference model says how likely each was; what it expects "
        "anyway does not count as exposure. A secret that was not learnt shows b bits with a probability of at most "
        "2^-b.",
    ),
    (
        "Threshold",
        "log₂(N / alpha) for N secrets. Even if none of them was learnt, some show a few bits by chance. The "
        "probability that any of them exceeds the threshold by chance is alpha.",
    ),
    (
        "Leak probability",
        "How likely the model is to write a text that begins with the secret, given what comes before it, each time "
        "that it is asked. The truth lies between the two numbers for certain.",
    ),
    ("Queries to 50%", "How often one has to ask until the secret has come with an even chance."),
    (
        "Extracted",
        "Whether an attacker who looks for the likeliest secrets behind the same words finds it: among as many as "
        "are in the texts.",
    ),
    (
        "Name",
        "Equal secrets have equal names. They are keyed hashes; the key was random and was not kept, so that they tell "
        "nothing about the secrets.",
    ),
)
_SHARED = ("Rank", "Exposure", "Interval")


def write_scan(scan: Scan, path: str | os.PathLike[str], *, reveal: bool = False) -> Path:
    """Write a scan as one self-contained page.

    Args:
        scan: What was found.
        path: The file, or a directory, where it is called `report.html`.
        reveal: Whether to show the secrets. Nobody but the owner may read the file then.

    Returns:
        The path of the file.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    target = page_path(path)
    write_whole(target, render(scan, reveal=reveal), private=reveal)
    return target


def render(scan: Scan, *, reveal: bool = False) -> str:
    """The page as a string."""
    return render_page(
        "scan.html",
        verdict=_headline(scan),
        remarks="" if scan.calibrated else NOT_CALIBRATED[0].upper() + NOT_CALIBRATED[1:],
        shade=_shade(scan),
        meaning=[scan.summary()],
        facts=[
            ("distinct secrets", f"{len(scan.rows):,}"),
            ("memorized", f"{len(scan.memorized):,}" if scan.calibrated else "not calibrated"),
            ("extracted", f"{sum(bool(row.extracted) for row in scan.rows):,}"),
            ("threshold", f"{scan.threshold_bits:.2f} bits"),
        ],
        rows=[
            (scan.cells(row, reveal=reveal), names_of(scan.places(row, reveal=reveal)), _mood(scan, row))
            for row in scan.rows
        ],
        foundations=contents.foundations((scan.name(row), row.estimate) for row in scan.rows if row.estimate),
        settings=contents.setting_rows(plain(scan.settings, "settings")),
        glossary=[*_TERMS, *(pair for pair in contents.GLOSSARY if pair[0] in _SHARED)],
        masked=not reveal,
    )


def _headline(scan: Scan) -> str:
    if not scan.rows:
        return "No secret was found in the texts"
    if not scan.calibrated:
        return f"{sum(map(scan.is_above, scan.rows)):,} of {len(scan.rows):,} secrets are above the threshold"
    return f"{len(scan.memorized):,} of {len(scan.rows):,} secrets are memorized"


def _shade(scan: Scan) -> str:
    """Red for what is proven; green never: that nothing was shown is no proof that there is nothing."""
    if scan.memorized:
        return LEAKS
    return LIKELY if scan.calibrated and len(scan.measured) == len(scan.rows) else UNKNOWN


def _mood(scan: Scan, row: ScannedSecret) -> str:
    if row.estimate is None or not scan.calibrated:
        return UNKNOWN
    return LEAKS if scan.is_memorized(row) else LIKELY
