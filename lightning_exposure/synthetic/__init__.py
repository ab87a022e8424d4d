"""What data that a model has generated give away about the data that it was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

if TYPE_CHECKING:
    from lightning_exposure.report.release import SyntheticAudit
    from lightning_exposure.synthetic.records.attack import AttackResult, GeneratedDataAttack
    from lightning_exposure.synthetic.records.classifier import SmallClassifier
    from lightning_exposure.synthetic.records.utility import Utility, UtilityMatrix
    from lightning_exposure.synthetic.text.audit import audit_synthetic
    from lightning_exposure.synthetic.text.scorers import NeuralScorer, NgramScorer

__all__ = [
    "AttackResult",
    "GeneratedDataAttack",
    "NeuralScorer",
    "NgramScorer",
    "SmallClassifier",
    "SyntheticAudit",
    "Utility",
    "UtilityMatrix",
    "audit_synthetic",
]

# Imported when they are asked for: to count copies in a text needs no PyTorch.
_HOMES = {
    "AttackResult": "records.attack",
    "GeneratedDataAttack": "records.attack",
    "NeuralScorer": "text.scorers",
    "NgramScorer": "text.scorers",
    "SmallClassifier": "records.classifier",
    "SyntheticAudit": "text.audit",
    "Utility": "records.utility",
    "UtilityMatrix": "records.utility",
    "audit_synthetic": "text.audit",
}

__getattr__ = lazy_names(__name__, _HOMES)
