"""Secrets that nobody planted: what a model does with those in its training texts."""

from lightning_exposure.measuring.scanning._engine import Reference, scan_model
from lightning_exposure.measuring.scanning._found import FoundSecret, distinct_secrets
from lightning_exposure.measuring.scanning._monitor import ReferenceSource, ScanMonitor, UntrainedReferenceWarning
from lightning_exposure.measuring.scanning._settings import ScanSettings

__all__ = [
    "FoundSecret",
    "Reference",
    "ReferenceSource",
    "ScanMonitor",
    "ScanSettings",
    "UntrainedReferenceWarning",
    "distinct_secrets",
    "scan_model",
]
