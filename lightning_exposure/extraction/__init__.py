"""Attacks: pull secrets out of a model."""

# Importing an attack registers it.
from lightning_exposure.extraction import _beam, _brute_force, _sampling, _shortest_path  # noqa: F401
from lightning_exposure.extraction._attacks import ATTACKS, Attack, AttackName, Found
from lightning_exposure.extraction._extract import check_settings, extract
from lightning_exposure.extraction._result import CERTAIN, Candidate, Extraction

__all__ = [
    "ATTACKS",
    "CERTAIN",
    "Attack",
    "AttackName",
    "Candidate",
    "Extraction",
    "Found",
    "check_settings",
    "extract",
]
