"""Sanitization by log-perplexity difference: find what was learnt by heart, and train again without it."""

from lightning_exposure.defences.sanitizing._grouping import group_copies, letters_and_digits
from lightning_exposure.defences.sanitizing._sanitize import sanitize
from lightning_exposure.defences.sanitizing.sanitization import Sanitization
from lightning_exposure.defences.sanitizing.scoring import TextScorer
from lightning_exposure.defences.sanitizing.training import ReferenceTraining

__all__ = ["ReferenceTraining", "Sanitization", "TextScorer", "group_copies", "letters_and_digits", "sanitize"]
