"""A gate: is an exposure above a limit, and how sure is that over a whole run?"""

from lightning_exposure.measuring.gate._decision import (
    EXCEEDED,
    UNDECIDED,
    WITHIN,
    Answer,
    Bounds,
    GateLook,
    Spending,
    bits_of_luck,
    bounds_of,
    take_look,
)
from lightning_exposure.measuring.gate._keeper import GateAction, GateKeeper, GateWarning, UndecidedAction

__all__ = [
    "EXCEEDED",
    "UNDECIDED",
    "WITHIN",
    "Answer",
    "Bounds",
    "GateAction",
    "GateKeeper",
    "GateLook",
    "GateWarning",
    "Spending",
    "UndecidedAction",
    "bits_of_luck",
    "bounds_of",
    "take_look",
]
