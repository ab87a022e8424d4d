"""What to do about memorization: take secrets out of the data, or make the model forget them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_exposure._lazy import lazy_names

if TYPE_CHECKING:
    from lightning_exposure.defences.sanitizing import ReferenceTraining, Sanitization, TextScorer, sanitize

__all__ = ["ReferenceTraining", "Sanitization", "TextScorer", "sanitize"]

# Imported when they are asked for: redacting a text needs neither PyTorch nor Lightning.
__getattr__ = lazy_names(
    __name__,
    {name: "sanitizing" for name in ("ReferenceTraining", "Sanitization", "TextScorer", "sanitize")},
)
