"""What a secret looks like: formats, canaries, and their exact acceptors.

This layer knows nothing about models: it is pure Python (and accepts numpy generators as seeds).
"""

from __future__ import annotations

from lightning_exposure.secrets.canaries.canary import Canary
from lightning_exposure.secrets.canaries.canary_set import CanarySet
from lightning_exposure.secrets.formats.acceptor import Acceptor
from lightning_exposure.secrets.formats.format import SecretFormat
from lightning_exposure.secrets.formats.named import NAMED_FORMATS
from lightning_exposure.secrets.formats.tied import TiedFormats
from lightning_exposure.secrets.masking import Mask
from lightning_exposure.secrets.redaction import Redaction
from lightning_exposure.secrets.scanner.finding import Finding
from lightning_exposure.secrets.scanner.scanner import Scanner

__all__ = [
    "NAMED_FORMATS",
    "Acceptor",
    "Canary",
    "CanarySet",
    "Finding",
    "Mask",
    "Redaction",
    "Scanner",
    "SecretFormat",
    "TiedFormats",
]
