"""Secrets of one tree that have been scored, and how they are to be measured: what every method starts from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, Rounding


@dataclass(frozen=True)
class Case:
    """Different secrets, scored, and how to measure them.

    Attributes:
        tree: Where they live.
        secrets: Their texts.
        paths: Their tokens, one row each.
        costs: Their log-perplexities, in bits, all finite.
        rounding: Which costs can be told apart.
        expansions: How many nodes were read so far.
        budget: The largest number of expansions of an exact count.
        samples: The largest number of walks of an estimate.
        precision: How many bits wide an interval may be; None: as narrow as it gets.
        seed: Of the walks.
        confidence: Of the intervals.
        memory: The limit for model states, in bytes.
        progress: Called during an exact count.
    """

    tree: SecretTree
    secrets: list[str]
    paths: NDArray[np.int32]
    costs: NDArray[np.float64]
    rounding: Rounding
    expansions: int
    budget: int
    samples: int
    precision: float | None
    seed: int
    confidence: float
    memory: int
    progress: Progress | None

    def __len__(self) -> int:
        """How many secrets."""
        return len(self.secrets)

    @property
    def bound(self) -> float:
        """Nothing above this cost is of interest; the slack keeps the secrets below it, whatever the rounding."""
        return float(self.costs.max()) + 2.0 * self.rounding.bits

    def only(self, which: Sequence[int]) -> Case:
        """The same for some of the secrets."""
        return replace(
            self,
            secrets=[self.secrets[i] for i in which],
            paths=self.paths[list(which)],
            costs=self.costs[list(which)],
        )

    def estimate(
        self,
        i: int,
        method: str,
        rank: int | float,
        interval: tuple[float, float],
        expansions: int,
        rests_on: str,
        *,
        is_bound: bool = False,
    ) -> ExposureEstimate:
        """An estimate from a rank and an interval of ranks; what it rests on includes the tree's own word."""
        return ExposureEstimate(
            secret=self.secrets[i],
            bits=bits_of_rank(rank, self.tree.bits),
            low=bits_of_rank(interval[1], self.tree.bits),
            high=bits_of_rank(interval[0], self.tree.bits),
            method=method,
            rank=rank,
            log_perplexity=float(self.costs[i]),
            size_bits=self.tree.bits,
            is_bound=is_bound,
            confidence=self.confidence,
            expansions=self.expansions + expansions,
            rests_on=rests_on,
        )

    def counted(self, i: int, rank: int, fewest: int, most: int, expansions: int) -> ExposureEstimate:
        """An estimate from a count of everything: exact, unless rounding leaves ties undecided."""
        if fewest == most:
            rests_on = "a count of every secret that costs at most as much"
            return self.estimate(i, "exact", most, (most, most), expansions, rests_on)
        rests_on = (
            f"a count of every secret that costs at most as much; {most - fewest:,} of them are within "
            f"{self.rounding.bits:.2g} bits of this one, which is what rounding does to a cost in this model"
        )
        rank = min(most, max(fewest, rank))
        return self.estimate(i, "counted", rank, (fewest, most), expansions, rests_on)


def bits_of_rank(rank: int | float, size_bits: float) -> float:
    """A rank as exposure, between 0 and log2 |R|."""
    return min(size_bits, max(0.0, size_bits - math.log2(rank)))
