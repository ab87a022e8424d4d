"""Exposure from scores that somebody else computed: an evaluation harness, another machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_exposure._checks import check_confidence, refusal, whole_number
from lightning_exposure.exposure._case import Case
from lightning_exposure.exposure.methods import measure_by_sampling
from lightning_exposure.exposure.ranking import finite_scores
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.walks import Rounding, UniformSample

_SINGLE = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class _ScoredCase(Case):
    """Secrets and references whose scores are known.

    Attributes:
        known_references: The log-perplexities of the references.
        all_secrets: |R|.
    """

    known_references: NDArray[np.float64]
    all_secrets: int

    @property
    def size(self) -> int:
        """|R|."""
        return self.all_secrets

    @property
    def size_bits(self) -> float:
        """log2 |R|."""
        return math.log2(self.all_secrets)

    def references(self, seed: int) -> UniformSample:
        """Those that were given."""
        return UniformSample([""] * len(self.known_references), self.known_references, 0)

    def only(self, which: Sequence[int]) -> _ScoredCase:
        """The same for some of the secrets."""
        return replace(self, secrets=[self.secrets[i] for i in which], costs=self.costs[list(which)])


def exposure_from_scores(
    secrets: Sequence[str],
    costs: ArrayLike,
    references: ArrayLike,
    size: int,
    *,
    confidence: float = 0.95,
) -> list[ExposureEstimate]:
    """Exposure by sampling, from log-perplexities that are known already.

    The numbers are those of `measure_exposure(tree, secrets, "sampling")` with the same references.

    Args:
        secrets: What to call the secrets, each once: their texts, or names.
        costs: Their log-perplexities, in bits.
        references: Those of other secrets of the format: different ones, drawn uniformly from all but the given ones.
        size: How many secrets the format has.
        confidence: The confidence level of the intervals.

    Raises:
        ScoreError: There are no references, or a score is NaN or infinite.

    Example:
        >>> first, other = exposure_from_scores(["a", "b"], [1.0, 9.0], [8.0, 9.5, 10.0, 7.0], size=1000)
        >>> first.is_bound, round(other.rank), other.low <= other.bits <= other.high
        (True, 501, True)
    """
    known = finite_scores(costs, "costs", at_least=1)
    drawn = finite_scores(references, "references", at_least=1)
    if len(secrets) != len(known):
        raise refusal("secrets", f"{len(secrets)} names", f"one for each of the {len(known)} costs")
    whole_number("size", size, at_least=len(known) + len(drawn), remedy="It counts the secrets and the references.")
    # Somebody's sum of single-precision logarithms.
    noise = 16.0 * _SINGLE * float(max(known.max(), drawn.max(), 1.0))
    case = _ScoredCase(
        secrets=list(secrets),
        costs=known,
        rounding=Rounding(noise, False),
        expansions=0,
        budget=0,
        samples=len(drawn),
        seed=0,
        confidence=check_confidence(confidence),
        known_references=drawn,
        all_secrets=size,
    )
    return measure_by_sampling(case)
