"""Attacks: pull secrets out of a model."""

# Importing an attack registers it.
from lightning_exposure.extraction import _beam, _brute_force, _sampling, _shortest_path  # noqa: F401
from lightning_exposure.extraction._attacks import ATTACKS, Attack, AttackName, Found
from lightning_exposure.extraction._extract import extract
from lightning_exposure.extraction._result import CERTAIN, Candidate, Extraction
from lightning_exposure.extraction._settings import AttackSetting, attack_settings, check_settings

__all__ = [
    "ATTACKS",
    "CERTAIN",
    "Attack",
    "AttackName",
    "AttackSetting",
    "Candidate",
    "Extraction",
    "Found",
    "attack_settings",
    "check_settings",
    "extract",
]
