"""How far a walk is: the one signature of every `progress` in this library."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, float], None]
"""Called now and then with the expansions so far, the open nodes, and the bits of the cheapest secret so far.

The last one is infinity as long as no secret was reached.
"""
