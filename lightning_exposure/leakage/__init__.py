"""How likely a model is to say a secret when text is sampled from it, and which ones it says."""

from lightning_exposure.leakage.decoder import Decoder
from lightning_exposure.leakage.estimate import LeakEstimate, NearMiss
from lightning_exposure.leakage.probability import leak_probability
from lightning_exposure.leakage.sampled import ClassLeaks, NewFindings, SampledLeaks, SecretLeaks
from lightning_exposure.leakage.sampling import sample_leaks
from lightning_exposure.leakage.writer import TextWriter, Written

__all__ = [
    "ClassLeaks",
    "Decoder",
    "LeakEstimate",
    "NearMiss",
    "NewFindings",
    "SampledLeaks",
    "SecretLeaks",
    "TextWriter",
    "Written",
    "leak_probability",
    "sample_leaks",
]
