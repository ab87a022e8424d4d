"""Differentially private training: clipping, noise, accounting, auditing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_exposure.privacy.accounting import epsilon, noise_for, steps_within
    from lightning_exposure.privacy.auditing import AuditResult, audit
    from lightning_exposure.privacy.budget import Budget
    from lightning_exposure.privacy.clipping import Clipping
    from lightning_exposure.privacy.losses import per_example_loss
    from lightning_exposure.privacy.optimizer import private_optimizer
    from lightning_exposure.privacy.sampling import PoissonLoader, generators
    from lightning_exposure.privacy.training import PrivateSteps

__all__ = [
    "AuditResult",
    "Budget",
    "Clipping",
    "PoissonLoader",
    "PrivateSteps",
    "audit",
    "epsilon",
    "generators",
    "noise_for",
    "per_example_loss",
    "private_optimizer",
    "steps_within",
]

# Imported when they are asked for: whoever wants one layer of this package should not have to load Opacus.
_HOMES = {
    "AuditResult": "auditing",
    "Budget": "budget",
    "Clipping": "clipping",
    "PoissonLoader": "sampling",
    "PrivateSteps": "training",
    "audit": "auditing",
    "epsilon": "accounting",
    "generators": "sampling",
    "noise_for": "accounting",
    "per_example_loss": "losses",
    "private_optimizer": "optimizer",
    "steps_within": "accounting",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
