"""What one can choose from, as types: an editor offers it, and a type checker refuses the rest."""

from __future__ import annotations

from typing import Literal

Method = Literal["auto", "exact", "importance", "sampling", "skewnormal"]
"""How `measure_exposure` measures."""

Algorithm = Literal["shortest_path", "brute_force", "beam", "sampling"]
"""How `extract` attacks."""
