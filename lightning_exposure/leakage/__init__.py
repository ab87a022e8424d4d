"""How likely a model is to say a secret when text is sampled from it."""

from lightning_exposure.leakage.decoder import Decoder
from lightning_exposure.leakage.estimate import LeakEstimate, NearMiss
from lightning_exposure.leakage.probability import leak_probability

__all__ = ["Decoder", "LeakEstimate", "NearMiss", "leak_probability"]
