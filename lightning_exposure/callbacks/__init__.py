"""Lightning callbacks: they orchestrate, and compute nothing themselves."""

from lightning_exposure.callbacks.audit import AuditCallback
from lightning_exposure.callbacks.exposure import ExposureCallback
from lightning_exposure.callbacks.extraction import ExtractionCallback
from lightning_exposure.callbacks.gate import ExposureGate
from lightning_exposure.callbacks.leaks import LeakCallback
from lightning_exposure.callbacks.private.differential_privacy import DifferentialPrivacy
from lightning_exposure.callbacks.report import ReportCallback
from lightning_exposure.callbacks.scan import ScanCallback
from lightning_exposure.measuring import AuditWarning, UntrainedPriorWarning, quiet
from lightning_exposure.measuring.gate import GateWarning

__all__ = [
    "AuditCallback",
    "AuditWarning",
    "DifferentialPrivacy",
    "ExposureCallback",
    "ExposureGate",
    "ExtractionCallback",
    "GateWarning",
    "LeakCallback",
    "ReportCallback",
    "ScanCallback",
    "UntrainedPriorWarning",
    "quiet",
]
