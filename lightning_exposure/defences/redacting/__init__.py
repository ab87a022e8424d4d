"""Anonymization: secrets are taken out of texts, or replaced by others of the same format that are nobody's."""

from __future__ import annotations

from lightning_exposure.defences.redacting.pseudonyms import Pseudonyms
from lightning_exposure.defences.redacting.redactor import Redactor, redact

__all__ = ["Pseudonyms", "Redactor", "redact"]
