"""What was found, as rows and as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lightning_exposure.extraction import Extraction
from lightning_exposure.report.verdicts import Verdict
from lightning_exposure.secrets import CanarySet, Redaction

EXTRACTION_COLUMNS = ("format", "order", "candidate", "bits", "canary", "proven optimal", "ended by", "expansions")

VERDICT_COLUMNS = ("canary", "how many guesses find it")

Row = tuple[str | int | float | bool, ...]


def extraction_rows(
    extractions: Mapping[str, Extraction], canaries: CanarySet, redaction: Redaction | None = None
) -> list[Row]:
    """One row per candidate, in the order of `EXTRACTION_COLUMNS`.

    Args:
        extractions: The attacks, by the name of the format.
        canaries: What a candidate may be: the row has its id, or "" for what is none of them.
        redaction: Which candidates are shown in full; None: the canaries, as on this machine.
    """
    redaction = Redaction(canaries) if redaction is None else redaction
    ids = {canary.text: canary.id for canary in canaries}
    formats = {canary.format.name: canary.format for canary in canaries}
    return [
        (
            name,
            candidate.order,
            redaction.text(candidate.text, attack.format or formats.get(name)),
            candidate.bits,
            ids.get(candidate.text, ""),
            attack.optimal,
            attack.ended_by,
            attack.expansions,
        )
        for name, attack in extractions.items()
        for candidate in attack.candidates
    ]


def extraction_table(
    extractions: Mapping[str, Extraction], canaries: CanarySet, redaction: Redaction | None = None
) -> str:
    """The same as text, with one line per attack that found nothing."""
    rows = [
        [name, f"{order}", text, f"{bits:.2f}", canary or "no canary", "proven" if optimal else ended, f"{read:,}"]
        for name, order, text, bits, canary, optimal, ended, read in extraction_rows(extractions, canaries, redaction)
    ]
    rows += [
        [name, "-", "nothing found", "", "", attack.ended_by, f"{attack.expansions:,}"]
        for name, attack in extractions.items()
        if not attack.candidates
    ]
    columns = ("format", "#", "candidate", "bits", "canary", "optimal", "expansions")
    return text_table(columns, [[str(cell) for cell in row] for row in rows])


def verdict_rows(verdicts: Mapping[str, Verdict]) -> list[tuple[str, str]]:
    """One row per canary, in the order of `VERDICT_COLUMNS`."""
    return [(key, str(verdict)) for key, verdict in verdicts.items()]


def verdict_table(verdicts: Mapping[str, Verdict]) -> str:
    """The same as text."""
    return text_table(VERDICT_COLUMNS, verdict_rows(verdicts))


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Rows under their headings, in columns as wide as they need to be; a line break in a cell is shown as ``\n``.

    Example:
        >>> print(text_table(("id", "bits"), [("ssn-4x", "29.90")]))
        id      bits
        ------  -----
        ssn-4x  29.90
    """
    rows = [[cell.replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    lines = [columns, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
