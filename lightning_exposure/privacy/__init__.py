"""Differentially private training: clipping, private steps, auditing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

# At once, not when it is asked for: the package `audit` would otherwise hide the function of that name.
from lightning_exposure.privacy.audit.audit import AuditResult, audit

if TYPE_CHECKING:
    from lightning_exposure.privacy.audit.canaries import draw_audit_canaries, unused_token_format
    from lightning_exposure.privacy.clipping.clipping import Clipping
    from lightning_exposure.privacy.clipping.losses import per_example_loss
    from lightning_exposure.privacy.clipping.treatments import Treatment, layer_treatments
    from lightning_exposure.privacy.steps.accounting import epsilon, noise_for, steps_within
    from lightning_exposure.privacy.steps.adaptive import AdaptiveClipping
    from lightning_exposure.privacy.steps.budget import Budget
    from lightning_exposure.privacy.steps.optimizer import private_optimizer
    from lightning_exposure.privacy.steps.poisson import PoissonLoader, generators
    from lightning_exposure.privacy.steps.private_steps import PrivateSteps
    from lightning_exposure.privacy.users.grouping import Grouped
    from lightning_exposure.privacy.users.membership import Users, name_users

__all__ = [
    "AdaptiveClipping",
    "AuditResult",
    "Budget",
    "Clipping",
    "Grouped",
    "PoissonLoader",
    "PrivateSteps",
    "Treatment",
    "Users",
    "audit",
    "draw_audit_canaries",
    "epsilon",
    "generators",
    "layer_treatments",
    "name_users",
    "noise_for",
    "per_example_loss",
    "private_optimizer",
    "steps_within",
    "unused_token_format",
]

# Imported when they are asked for: whoever wants one layer of this package should not have to load Opacus.
_HOMES = {
    "AdaptiveClipping": "steps.adaptive",
    "Budget": "steps.budget",
    "Clipping": "clipping.clipping",
    "Grouped": "users.grouping",
    "PoissonLoader": "steps.poisson",
    "PrivateSteps": "steps.private_steps",
    "draw_audit_canaries": "audit.canaries",
    "Treatment": "clipping.treatments",
    "Users": "users.membership",
    "epsilon": "steps.accounting",
    "generators": "steps.poisson",
    "layer_treatments": "clipping.treatments",
    "name_users": "users.membership",
    "noise_for": "steps.accounting",
    "per_example_loss": "clipping.losses",
    "private_optimizer": "steps.optimizer",
    "steps_within": "steps.accounting",
    "unused_token_format": "audit.canaries",
}

__getattr__ = lazy_names(__name__, _HOMES)
