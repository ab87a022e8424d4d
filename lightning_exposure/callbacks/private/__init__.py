"""`DifferentialPrivacy`: a training run made private, and watched from its first step to its last."""

from lightning_exposure.callbacks.private.differential_privacy import DifferentialPrivacy

__all__ = ["DifferentialPrivacy"]
