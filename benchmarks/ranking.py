"""Exposure from scores alone, for people who bring their own."""

from __future__ import annotations

import numpy as np

from benchmarks.table import Row, Target
from benchmarks.timing import best_of
from lightning_exposure.exposure import exposure_by_rank


def benchmark_ranking(*, references: int = 1_000_000, secrets: int = 1_000, repeats: int = 5) -> list[Row]:
    """Rank many secrets among many references."""
    generator = np.random.default_rng(0)
    reference_scores = generator.normal(30.0, 3.0, size=references)
    scores = generator.normal(25.0, 5.0, size=secrets)
    bits, seconds = best_of(repeats, lambda: exposure_by_rank(scores, reference_scores))
    return [
        Row(
            f"exposure of {secrets:,} scores among {references:,} references",
            seconds,
            "s",
            Target("below", 0.2),
            f"{bits.min():.2f} to {bits.max():.2f} bits",
        )
    ]
