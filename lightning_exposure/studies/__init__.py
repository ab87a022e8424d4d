"""Studies: every table and figure of the papers as a grid of trainings that anyone can run again.

`Study` says how to write one.
"""

from importlib import import_module
from pkgutil import iter_modules

from lightning_exposure.studies._directory import Outcome
from lightning_exposure.studies._engine import StudyProgress, StudyResult, run_study
from lightning_exposure.studies._tables import over_seeds, read_csv, readable
from lightning_exposure.studies.equal_loss import at_equal_loss
from lightning_exposure.studies.figures import bar_figure, line_figure
from lightning_exposure.studies.runners import RUNNERS, Runner
from lightning_exposure.studies.study import SCALES, STUDIES, Cell, Column, PaperTable, Row, Scale, Study, product
from lightning_exposure.studies.training import exposure_row, train_language_model

__all__ = [
    "RUNNERS",
    "SCALES",
    "STUDIES",
    "Cell",
    "Column",
    "Outcome",
    "PaperTable",
    "Row",
    "Runner",
    "Scale",
    "Study",
    "StudyProgress",
    "StudyResult",
    "at_equal_loss",
    "bar_figure",
    "exposure_row",
    "line_figure",
    "over_seeds",
    "product",
    "read_csv",
    "readable",
    "run_study",
    "train_language_model",
]

# Every file of these folders registers a study.
for _folder in ("memorization", "attacks", "defences"):
    _package = import_module(f"{__name__}.{_folder}")
    for _module in iter_modules(_package.__path__, f"{_package.__name__}."):
        import_module(_module.name)
