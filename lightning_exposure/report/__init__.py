"""What a run leaves behind, for people: a record on disk, plots, and one page of HTML.

Matplotlib and Jinja2 come with the extra `report` and are imported when something is drawn or written.
"""

from __future__ import annotations

from lightning_exposure.report.figures.loss_against_exposure import loss_against_exposure
from lightning_exposure.report.figures.style import MissingExtraError
from lightning_exposure.report.limits.checkpoints import MeasuredCheckpoint, best_checkpoint, measured_checkpoints
from lightning_exposure.report.pages.run import write_report
from lightning_exposure.report.record import Measurement, References, RunRecord
from lightning_exposure.report.recording import Contributor, run_record
from lightning_exposure.report.verdicts import Verdict, verdict_of
from lightning_exposure.report.weights import weights_sha256

__all__ = [
    "Contributor",
    "MeasuredCheckpoint",
    "Measurement",
    "MissingExtraError",
    "References",
    "RunRecord",
    "Verdict",
    "best_checkpoint",
    "loss_against_exposure",
    "measured_checkpoints",
    "run_record",
    "verdict_of",
    "weights_sha256",
    "write_report",
]
