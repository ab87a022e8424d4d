"""What to do about memorization: take secrets out of the data, or make the model forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

if TYPE_CHECKING:
    from lightning_exposure.defences.compressed import compressed_size
    from lightning_exposure.defences.quantization import Quantization, quantization_of, quantize
    from lightning_exposure.defences.redacting import Pseudonyms, Redactor, redact
    from lightning_exposure.defences.redacting.data import RedactedDataset, redact_data
    from lightning_exposure.defences.regularization import Regularization, set_dropout, set_weight_decay
    from lightning_exposure.defences.sanitizing import ReferenceTraining, Sanitization, TextScorer, sanitize

__all__ = [
    "Pseudonyms",
    "Quantization",
    "RedactedDataset",
    "Redactor",
    "ReferenceTraining",
    "Regularization",
    "Sanitization",
    "TextScorer",
    "compressed_size",
    "quantization_of",
    "quantize",
    "redact",
    "redact_data",
    "sanitize",
    "set_dropout",
    "set_weight_decay",
]

# Imported when they are asked for: redacting a text needs neither PyTorch nor Lightning.
_HOMES = {
    "Pseudonyms": "redacting",
    "Quantization": "quantization",
    "RedactedDataset": "redacting.data",
    "Redactor": "redacting",
    "ReferenceTraining": "sanitizing",
    "Regularization": "regularization",
    "Sanitization": "sanitizing",
    "TextScorer": "sanitizing",
    "compressed_size": "compressed",
    "quantization_of": "quantization",
    "quantize": "quantization",
    "redact": "redacting",
    "redact_data": "redacting.data",
    "sanitize": "sanitizing",
    "set_dropout": "regularization",
    "set_weight_decay": "regularization",
}

__getattr__ = lazy_names(__name__, _HOMES)
