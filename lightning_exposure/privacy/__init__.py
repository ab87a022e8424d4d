"""Differentially private training: clipping, private steps, auditing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

# At once, not when it is asked for: the package `audit` would otherwise hide the function of that name.
from lightning_exposure.privacy.audit.audit import AuditResult, audit

if TYPE_CHECKING:
    from lightning_exposure.privacy.clipping.clipping import Clipping
    from lightning_exposure.privacy.clipping.losses import per_example_loss
    from lightning_exposure.privacy.steps.accounting import epsilon, noise_for, steps_within
    from lightning_exposure.privacy.steps.budget import Budget
    from lightning_exposure.privacy.steps.optimizer import private_optimizer
    from lightning_exposure.privacy.steps.poisson import PoissonLoader, generators
    from lightning_exposure.privacy.steps.private_steps import PrivateSteps

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
    "Budget": "steps.budget",
    "Clipping": "clipping.clipping",
    "PoissonLoader": "steps.poisson",
    "PrivateSteps": "steps.private_steps",
    "epsilon": "steps.accounting",
    "generators": "steps.poisson",
    "noise_for": "steps.accounting",
    "per_example_loss": "clipping.losses",
    "private_optimizer": "steps.optimizer",
    "steps_within": "steps.accounting",
}

__getattr__ = lazy_names(__name__, _HOMES)
