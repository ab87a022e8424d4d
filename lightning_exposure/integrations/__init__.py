"""The same measurements where training is done by others: Hugging Face's Trainer, and Fabric.

Nothing here computes anything: all of it calls `lightning_exposure.measuring`, as the Lightning callbacks do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

if TYPE_CHECKING:
    from lightning_exposure.integrations.fabric import FabricSurroundings
    from lightning_exposure.integrations.transformers import ExposureTrainerCallback
    from lightning_exposure.integrations.transformers_gate import ExposureGateTrainerCallback

__all__ = ["ExposureGateTrainerCallback", "ExposureTrainerCallback", "FabricSurroundings"]

# Each needs a library that a program may not have, or not want to load.
__getattr__ = lazy_names(
    __name__,
    {
        "ExposureGateTrainerCallback": "transformers_gate",
        "ExposureTrainerCallback": "transformers",
        "FabricSurroundings": "fabric",
    },
)
