"""What canaries prove about the privacy of a training run: guesses, and what a number of right ones shows."""

from lightning_exposure.privacy.audit.audit import AuditResult, audit
from lightning_exposure.privacy.audit.separation import attack_accuracy, auc, tpr_at_fpr

__all__ = ["AuditResult", "attack_accuracy", "auc", "audit", "tpr_at_fpr"]
