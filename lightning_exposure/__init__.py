"""Measure how much a language model has memorized its secrets.

All the secrets of a format form a tree; a language model puts a cost on every edge; every measurement and
every attack is a walk on that tree.

The public names live here and load on first use, so that `import lightning_exposure` costs nothing and a
program that only describes secrets never loads PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

if TYPE_CHECKING:
    from lightning_exposure.callbacks import (
        AuditCallback,
        DifferentialPrivacy,
        ExposureCallback,
        ExposureGate,
        ExtractionCallback,
        LeakCallback,
        ReportCallback,
        ScanCallback,
    )
    from lightning_exposure.data import CanaryDataModule
    from lightning_exposure.exposure import ExposureEstimate, measure_exposure
    from lightning_exposure.extraction import Candidate, Extraction, extract
    from lightning_exposure.leakage import Decoder, LeakEstimate, leak_probability
    from lightning_exposure.secrets import Canary, CanarySet, SecretFormat
    from lightning_exposure.tokenization import CharTokenizer, WordTokenizer
    from lightning_exposure.tree import SecretTree

__version__ = "0.1.0"

__all__ = [
    "AuditCallback",
    "Canary",
    "CanaryDataModule",
    "CanarySet",
    "Candidate",
    "CharTokenizer",
    "Decoder",
    "DifferentialPrivacy",
    "ExposureCallback",
    "ExposureEstimate",
    "ExposureGate",
    "Extraction",
    "ExtractionCallback",
    "LeakCallback",
    "LeakEstimate",
    "ReportCallback",
    "ScanCallback",
    "SecretFormat",
    "SecretTree",
    "WordTokenizer",
    "extract",
    "leak_probability",
    "measure_exposure",
]

# Type checkers read the imports above, Python reads this; a test keeps the two equal.
_HOMES = {
    "AuditCallback": "callbacks",
    "Canary": "secrets",
    "CanaryDataModule": "data",
    "CanarySet": "secrets",
    "Candidate": "extraction",
    "CharTokenizer": "tokenization",
    "Decoder": "leakage",
    "DifferentialPrivacy": "callbacks",
    "ExposureCallback": "callbacks",
    "ExposureEstimate": "exposure",
    "ExposureGate": "callbacks",
    "Extraction": "extraction",
    "ExtractionCallback": "callbacks",
    "LeakCallback": "callbacks",
    "LeakEstimate": "leakage",
    "ReportCallback": "callbacks",
    "ScanCallback": "callbacks",
    "SecretFormat": "secrets",
    "SecretTree": "tree",
    "WordTokenizer": "tokenization",
    "extract": "extraction",
    "leak_probability": "leakage",
    "measure_exposure": "exposure",
}


# Imports a public name from its layer, the first time someone asks for it.
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    """Names for completion: what is loaded already, and what would load on first use."""
    return sorted({*globals(), *_HOMES})
