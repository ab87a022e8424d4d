"""Every study at scale tiny gives a table of the right shape; at scale paper it has the paper's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.data.corpora import python_topics
from lightning_exposure.modules import LanguageModel
from lightning_exposure.studies import SCALES, STUDIES, run_study
from lightning_exposure.studies._tables import read_csv, summary_rows

OURS = [name for name in STUDIES.names() if not name.startswith("toy")]


@pytest.mark.parametrize("name", OURS)
def test_at_scale_tiny_a_study_fills_its_table(name: str, tmp_path: Path) -> None:
    study = STUDIES.get(name)
    result = run_study(name, tmp_path, scale="tiny", text=python_topics(), workers=0)
    assert not result.failed, result.failed
    rows = read_csv(tmp_path / "table.csv")
    assert tuple(rows[0]) == study.columns
    places = [(tuple(cell.settings.get(f) for f in study.factors), cell.seed) for cell in study.cells(name, "tiny")]
    found = list(dict.fromkeys((tuple(row[f] for f in study.factors), row["seed"]) for row in rows))
    assert found == places  # each cell of the grid, in its order
    assert len({tuple(row[k] for k in (*study.factors, "seed", *study.keys)) for row in rows}) == len(rows)
    for column in study.results:
        assert any(row[column.name] is not None for row in rows) or "margin" in column.name, column.name
    assert result.summary == summary_rows(study, rows)  # the summary can be made again from the table
    assert result.figure is not None
    assert result.figure.stat().st_size > 5_000


@pytest.mark.parametrize("name", OURS)
def test_every_scale_is_written_down(name: str) -> None:
    study = STUDIES.get(name)
    assert tuple(study.scales) == SCALES
    assert study.paper, "what the paper reports stands beside our table"
    for scale in SCALES:
        cells = study.cells(name, scale)
        assert len({cell.key for cell in cells}) == len(cells)
        assert study.scale(scale).cost
    for table in study.paper:
        assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize("name", OURS)
def test_the_settings_of_the_paper_make_a_model(name: str) -> None:
    for cell in STUDIES.get(name).cells(name, "paper", seeds=1):
        settings: dict[str, Any] = cell.settings.get("model", {})
        if settings:
            assert LanguageModel(vocab_size=50, **settings).hparams["lr"] == settings.get("lr", 0.001)
        # The corpus of translation is made up, and has no text.
        assert cell.settings["characters"] >= 200_000 or name == "translation"
