"""Studies: every table and figure of the papers as a grid of trainings that anyone can run again.

`Study` says how to write one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

if TYPE_CHECKING:
    from lightning_exposure.studies._directory import CellOutcome
    from lightning_exposure.studies._engine import StudyProgress, StudyResult, run_study
    from lightning_exposure.studies._tables import over_seeds, readable
    from lightning_exposure.studies.catalogue import STUDIES
    from lightning_exposure.studies.comparing import TableTest, above_chance, correlated, paired, sentences
    from lightning_exposure.studies.equal_loss import at_equal_loss
    from lightning_exposure.studies.figures import bar_figure, line_figure
    from lightning_exposure.studies.runners import RUNNERS
    from lightning_exposure.studies.study import SCALES, Cell, Column, PaperTable, Row, Scale, Study, product
    from lightning_exposure.studies.training import exposure_row, train_language_model

__all__ = [
    "RUNNERS",
    "SCALES",
    "STUDIES",
    "Cell",
    "CellOutcome",
    "Column",
    "PaperTable",
    "Row",
    "Scale",
    "Study",
    "StudyProgress",
    "StudyResult",
    "TableTest",
    "above_chance",
    "at_equal_loss",
    "bar_figure",
    "correlated",
    "exposure_row",
    "line_figure",
    "over_seeds",
    "paired",
    "product",
    "readable",
    "run_study",
    "sentences",
    "train_language_model",
]

_HOMES = {
    "_directory": ("CellOutcome",),
    "_engine": ("StudyProgress", "StudyResult", "run_study"),
    "_tables": ("over_seeds", "readable"),
    "catalogue": ("STUDIES",),
    "comparing": ("TableTest", "above_chance", "correlated", "paired", "sentences"),
    "equal_loss": ("at_equal_loss",),
    "figures": ("bar_figure", "line_figure"),
    "runners": ("RUNNERS",),
    "study": ("SCALES", "Cell", "Column", "PaperTable", "Row", "Scale", "Study", "product"),
    "training": ("exposure_row", "train_language_model"),
}

# A worker loads what its own study needs, and not what all of them need.
__getattr__ = lazy_names(__name__, {name: home for home, names in _HOMES.items() for name in names})
