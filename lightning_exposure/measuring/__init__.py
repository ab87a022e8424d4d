"""What is measured when, in which process, and what is logged: the orchestrator, which knows no Trainer.

Whatever trains a model describes itself as `Surroundings` and calls `ExposureMonitor`, `CanaryAttack` and `CanaryAudit`
at its own moments. `CanaryRun` holds the three together, and `ExposureLoop` calls it in a loop written by hand.
"""

from lightning_exposure.measuring._quiet import quiet, training_clock
from lightning_exposure.measuring.attack import CanaryAttack
from lightning_exposure.measuring.audit import AuditWarning, CanaryAudit, audited, other_canaries
from lightning_exposure.measuring.exposure import ExposureMonitor
from lightning_exposure.measuring.identity import Identity
from lightning_exposure.measuring.leaks import LeakMonitor, SamplingSettings
from lightning_exposure.measuring.loops import CanaryRun, ExposureLoop
from lightning_exposure.measuring.prior import PriorSource, UntrainedPriorWarning
from lightning_exposure.measuring.schedule import Schedule, is_last
from lightning_exposure.measuring.surroundings import Alone, Moment, Surroundings, Update
from lightning_exposure.measuring.trees import CanaryTrees, ModelOf, SharedTrees, share_out

__all__ = [
    "Alone",
    "AuditWarning",
    "CanaryAttack",
    "CanaryAudit",
    "CanaryRun",
    "CanaryTrees",
    "ExposureLoop",
    "ExposureMonitor",
    "Identity",
    "LeakMonitor",
    "ModelOf",
    "Moment",
    "PriorSource",
    "SamplingSettings",
    "Schedule",
    "SharedTrees",
    "Surroundings",
    "UntrainedPriorWarning",
    "Update",
    "audited",
    "is_last",
    "other_canaries",
    "quiet",
    "share_out",
    "training_clock",
]
