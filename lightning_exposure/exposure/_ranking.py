"""Exposure from scores alone: where a secret stands among references."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_exposure.errors import ScoreError


def finite_scores(values: ArrayLike, argument: str, *, at_least: int = 0) -> NDArray[np.float64]:
    """Scores as a flat array of finite numbers.

    Args:
        values: The scores.
        argument: What the caller calls them, for the error.
        at_least: How many there must be.

    Raises:
        ScoreError: There are too few, or one is NaN or infinite; names the argument and the first bad entry.
    """
    scores = np.asarray(values, dtype=np.float64).reshape(-1)
    if len(scores) < at_least:
        raise ScoreError(
            f"{argument} has {len(scores)} scores; expected at least {at_least}. Score more secrets of the format."
        )
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        raise ScoreError(
            f"{argument} has {len(bad)} scores that are NaN or infinite, the first at position {bad[0]} "
            f"({scores[bad[0]]}); expected finite log-perplexities. Look at the model that gave them."
        )
    return scores


def exposure_by_rank(scores: ArrayLike, references: ArrayLike) -> NDArray[np.float64]:
    """The exposure of each secret among references, in bits, in the order of the scores.

    Each secret is ranked against the references and itself: `rank = 1 + number of references with a score at most its
    own`, and `exposure = log2(number of references + 1) - log2(rank)`. So a reference that ties with the secret counts
    against it, and exposure is never negative. With a sample of references this is a sample's answer: it cannot be
    above `log2(number of references + 1)`.

    Args:
        scores: Log-perplexities of the secrets.
        references: Log-perplexities of other secrets of the same format, which were not in the training data.

    Raises:
        ScoreError: No references, or a score that is NaN or infinite.

    Example:
        >>> exposure_by_rank([0.5, 2.0, 9.0], [1.0, 2.0, 3.0]).round(3).tolist()
        [2.0, 0.415, 0.0]
    """
    ordered = np.sort(finite_scores(references, "references", at_least=1))
    ranks = 1 + np.searchsorted(ordered, finite_scores(scores, "scores"), side="right")
    bits: NDArray[np.float64] = np.log2(len(ordered) + 1) - np.log2(ranks)
    return bits
