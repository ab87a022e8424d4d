"""Pages of the documentation: what a study found, between what was written by hand."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from lightning_exposure._files import Field, read_json, write_whole
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.errors import MissingFileError
from lightning_exposure.studies._directory import MANIFEST
from lightning_exposure.studies._engine import FIGURE, TABLE, write_conclusions
from lightning_exposure.studies._tables import findings_of, read_csv, readable, summary_rows
from lightning_exposure.studies.catalogue import STUDIES
from lightning_exposure.studies.study import Row, Study

BEGIN = "<!-- begin: written by `lightning-exposure study page` -->"
END = "<!-- end -->"


def write_page(name: str, results: Path, docs: Path) -> Path:
    """Renew the page of a study from its table, and keep a copy of that beside it.

    The summary and the figure are made again: with the folder beside the page as `results`, they follow a change of
    how they are made without any training. What stands before and after the two marks in the page was written by hand,
    and stays.

    Args:
        name: Of the study.
        results: The directory of its results.
        docs: Where the pages are; the files go to a folder of the study's name inside.

    Raises:
        MissingFileError: The study has not been run to its end there.
    """
    if not (results / TABLE).exists():
        raise MissingFileError(
            f"--out is {str(results)!r}, which has no {TABLE}; expected a study that is done. Run it."
        )
    kept = docs / name
    kept.mkdir(parents=True, exist_ok=True)
    if kept.resolve() != results.resolve():
        for file in (TABLE, MANIFEST):
            shutil.copyfile(results / file, kept / file)
    write_conclusions(STUDIES.get(name), read_csv(kept / TABLE), kept)
    page = docs / f"{name}.md"
    text = page.read_text(encoding="utf-8") if page.exists() else _new_page(STUDIES.get(name))
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    write_whole(page, f"{before}{BEGIN}\n{results_section(name, kept)}{END}{after or chr(10)}")
    return page


def _new_page(study: Study) -> str:
    claim = f"{study.source}. The paper: {study.claim}"
    return f"# {study.title}\n\n{claim}\n\n{BEGIN}\n{END}\n\n## What agrees, and what does not\n"


def results_section(name: str, kept: Path) -> str:
    """What a page says between its marks, from the files beside it."""
    study, content = STUDIES.get(name), read_json(kept / MANIFEST)
    rows = read_csv(kept / TABLE)
    summary = summary_rows(study, rows)
    columns, cells = readable(study, summary)
    seeds = len({row["seed"] for row in rows})
    parts = [
        "<!-- not run: takes minutes; tests/studies/test_studies.py runs every study at scale tiny -->",
        f"```bash\n{_command(name, content, seeds)}\n```\n",
        f"{_text(content)}; {seeds} seed{'s' if seeds != 1 else ''} for each settings. "
        f"{_intervals(study, summary)}All trainings: [{TABLE}]({name}/{TABLE}).\n",
        markdown_table(columns, cells),
    ]
    if (kept / FIGURE).exists():
        parts.append(f"![{study.title}]({name}/{FIGURE})\n")
    if findings := findings_of(study, rows):
        parts.append("".join(f"- {finding}\n" for finding in findings))
    for table in study.paper:
        parts.append(f"**{table.title}**\n\n{markdown_table(table.columns, table.rows)}")
    return "\n".join(parts)


def _intervals(study: Study, summary: Sequence[Row]) -> str:
    """What stands in brackets; nothing of a summary that has no means."""
    if not any(name.endswith("_low") for row in summary for name in row):
        return ""
    means = "Means over the seeds with Student's 95% intervals, cut where nothing is possible beyond"
    shares = any(column.over_seeds == "share" for column in study.results)
    return f"{means}; shares with Clopper-Pearson's. " if shares else f"{means}. "


def _command(name: str, content: Field, seeds: int) -> str:
    scale = content["--scale"].as_(str)
    more = "" if seeds == STUDIES.get(name).scale(scale).seeds else f" --seeds {seeds}"
    return f"lightning-exposure study {name} --scale {scale}{more}"


def _text(content: Field) -> str:
    """What was trained on: the text that everybody has, or one that can only be told by its digest."""
    told, sizes = content["--text"], content["settings"].as_(dict)
    given = told["characters"].as_(int)
    characters = min(sizes.get("characters", given), given)
    if not characters:
        return "Trained on sentences of a small grammar"
    digest = told["sha256"].as_(str)
    ours = hashlib.sha256(python_topics().encode("utf-8")).hexdigest() == digest
    whose = "the topics of Python's `help()`" if ours else f"another text (SHA-256 {digest[:12]}...)"
    return f"Trained on the first {characters:,} characters of {whose}"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their headings.

    >>> print(markdown_table(["units", "bits"], [["16", "1.7"]]))
    | units | bits |
    | --- | --- |
    | 16 | 1.7 |
    <BLANKLINE>
    """
    lines = [columns, ["---"] * len(columns), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
