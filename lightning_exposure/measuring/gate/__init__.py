"""A gate: is an exposure above a limit, and how sure is that over a whole run?"""

from lightning_exposure.measuring.gate._decision import (
    EXCEEDED,
    UNDECIDED,
    WITHIN,
    AlphaSpending,
    Answer,
    Bounds,
    GateLook,
    bits_of_luck,
    bounds_of,
    take_look,
)
from lightning_exposure.measuring.gate._keeper import GateAction, GateKeeper, GateWarning, UndecidedAction

__all__ = [
    "EXCEEDED",
    "UNDECIDED",
    "WITHIN",
    "AlphaSpending",
    "Answer",
    "Bounds",
    "GateAction",
    "GateKeeper",
    "GateLook",
    "GateWarning",
    "UndecidedAction",
    "bits_of_luck",
    "bounds_of",
    "take_look",
]
