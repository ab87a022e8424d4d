"""Pages of studies: what they show is what their tables hold, and what was written by hand stays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_exposure.data.corpora import python_topics
from lightning_exposure.studies import STUDIES, readable, run_study
from lightning_exposure.studies._tables import findings_of, read_csv, summary_rows, to_csv
from lightning_exposure.studies.pages import BEGIN, END, markdown_table, write_page

DOCS = Path(__file__).resolve().parents[2] / "docs" / "studies"
KEPT = sorted(path.parent.name for path in DOCS.glob("*/table.csv"))


@pytest.mark.parametrize("name", KEPT)
def test_a_page_shows_what_its_table_holds(name: str) -> None:
    study, rows = STUDIES.get(name), read_csv(DOCS / name / "table.csv")
    assert tuple(rows[0]) == study.columns
    summary = summary_rows(study, rows)
    names = list(dict.fromkeys(column for row in summary for column in row))
    kept = (DOCS / name / "summary.csv").read_text(encoding="utf-8").splitlines()
    assert kept == to_csv(names, summary).splitlines()
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert markdown_table(*readable(study, summary)) in page
    assert all(finding in page for finding in findings_of(study, rows))
    assert f"lightning-exposure study {name} --scale cpu" in page


@pytest.mark.parametrize("name", KEPT)
def test_every_p_value_that_is_written_by_hand_is_one_that_the_study_computes(name: str) -> None:
    made, by_hand = (" ".join(part.split()) for part in (DOCS / f"{name}.md").read_text(encoding="utf-8").split(END))
    numbers = r"(?:p =|corrected) ([0-9.e-]*[0-9])"
    assert set(re.findall(numbers, by_hand)) <= set(re.findall(numbers, made))


def test_every_study_stands_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for name in STUDIES.names():
        assert name.startswith("toy") or f"[{name}]({name}.md)" in index or f"`{name}`" in index
    assert {name for name in KEPT if f"[{name}]({name}.md)" not in index} == set()


def test_what_was_written_by_hand_stays(tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    run_study("selectivity", results, scale="tiny", text=python_topics(), workers=0)
    page = write_page("selectivity", results, docs)
    first = page.read_text()
    assert first.count(BEGIN) == first.count(END) == 1
    page.write_text(first.replace("# The rank", "# My own title: the rank") + "\nAnd what I think of it.\n")
    again = write_page("selectivity", results, docs).read_text()
    assert again.startswith("# My own title")
    assert again.endswith("And what I think of it.\n")
    assert again.count("lightning-exposure study selectivity --scale tiny") == 1
    assert (docs / "selectivity" / "figure.png").stat().st_size > 5_000


def test_a_text_is_said_to_be_as_long_as_it_is(tmp_path: Path) -> None:
    text = python_topics()[:2000]
    run_study("selectivity", tmp_path / "results", scale="tiny", text=text, workers=0)
    page = write_page("selectivity", tmp_path / "results", tmp_path / "docs").read_text()
    assert "Trained on the first 2,000 characters of another text" in page


def test_summary_and_figure_follow_the_table_without_any_training(tmp_path: Path) -> None:
    results, docs = tmp_path / "results", tmp_path / "docs"
    run_study("selectivity", results, scale="tiny", text=python_topics(), workers=0)
    page = write_page("selectivity", results, docs)
    kept, before = docs / "selectivity", page.read_bytes()
    made = {name: (kept / name).read_bytes() for name in ("summary.csv", "figure.png")}
    assert made == {name: (results / name).read_bytes() for name in made}
    for name in made:
        (kept / name).write_bytes(b"of yesterday")
    assert write_page("selectivity", kept, docs).read_bytes() == before
    assert {name: (kept / name).read_bytes() for name in made} == made


def test_table_7_is_the_same_on_both_of_its_pages() -> None:
    (table,) = STUDIES.get("privacy").paper
    heading, _, *rows = markdown_table(table.columns, table.rows).splitlines()
    page = (DOCS.parent / "privacy.md").read_text(encoding="utf-8")
    assert heading in page
    assert "\n".join(rows) in page


def test_the_index_has_the_p_values_of_its_pages() -> None:
    for line in (DOCS / "index.md").read_text(encoding="utf-8").splitlines():
        for name in re.findall(r"^\| \[([a-z-]+)\]", line):
            page = " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split())
            assert [p for p in re.findall(r"p = ([0-9.e-]*[0-9])", line) if f"p = {p}" not in page] == []
