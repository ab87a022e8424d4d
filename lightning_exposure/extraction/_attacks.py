"""The registry of attacks: each is one file that registers itself here.

An attack is a function of a tree and `top_k`, with its settings as keyword arguments that have defaults, and with
`memory` and `progress`, which every attack is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from lightning_exposure._registry import Registry
from lightning_exposure.walks import SearchResult

AttackName = Literal["shortest_path", "brute_force", "beam", "sampling"]
"""The attacks that come with the library."""

Found = tuple[SearchResult, int | None]
"""What an attack gives back: the secrets, and which walk came to the target first, if it was told one."""

Attack = Callable[..., Found]

ATTACKS: Registry[Attack] = Registry("algorithm")
"""All attacks, by name."""
