"""One training run as a whole, for loops of others and of one's own."""

from lightning_exposure.measuring.loops._loop import ExposureLoop
from lightning_exposure.measuring.loops._run import CanaryRun

__all__ = ["CanaryRun", "ExposureLoop"]
