"""Attacks: pull secrets out of a model."""

from lightning_exposure.extraction.extraction import ALGORITHMS, CERTAIN, Candidate, Extraction, check_settings, extract

__all__ = ["ALGORITHMS", "CERTAIN", "Candidate", "Extraction", "check_settings", "extract"]
