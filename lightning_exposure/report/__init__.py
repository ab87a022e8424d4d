"""What a run leaves behind, for people: a record on disk, plots, and one page of HTML.

Matplotlib and Jinja2 come with the extra `report` and are imported when something is drawn or written.
"""

from __future__ import annotations

from lightning_exposure.report.figures.style import MissingExtraError
from lightning_exposure.report.pages.run import write_report
from lightning_exposure.report.record import Measurement, References, RunRecord
from lightning_exposure.report.verdicts import Verdict, verdict_of

__all__ = ["Measurement", "MissingExtraError", "References", "RunRecord", "Verdict", "verdict_of", "write_report"]
