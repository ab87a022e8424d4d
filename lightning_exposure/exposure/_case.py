"""Secrets that have been scored, and how they are to be measured: what every method starts from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, Rounding, UniformSample, uniform_walks

AnyCase = TypeVar("AnyCase", bound="Case")


@dataclass(frozen=True)
class Case(ABC):
    """Different secrets, scored, and how to measure them.

    Attributes:
        secrets: Their texts.
        costs: Their log-perplexities, in bits, all finite.
        rounding: Which costs can be told apart.
        expansions: How many nodes were read so far.
        budget: The largest number of expansions of an exact count.
        samples: The largest number of walks of an estimate.
        seed: Of the walks.
        confidence: Of the intervals.
    """

    secrets: list[str]
    costs: NDArray[np.float64]
    rounding: Rounding
    expansions: int
    budget: int
    samples: int
    seed: int
    confidence: float

    noun: ClassVar[str] = "secrets"
    """What is counted or drawn, for people."""

    def __len__(self) -> int:
        """How many secrets."""
        return len(self.secrets)

    @property
    @abstractmethod
    def size(self) -> int:
        """|R|."""

    @property
    @abstractmethod
    def size_bits(self) -> float:
        """log2 |R|."""

    @abstractmethod
    def references(self, seed: int) -> UniformSample:
        """Secrets drawn uniformly from all others, scored."""

    @abstractmethod
    def only(self: AnyCase, which: Sequence[int]) -> AnyCase:
        """The same for some of the secrets."""

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
        """An estimate from a rank and an interval of ranks."""
        return ExposureEstimate(
            secret=self.secrets[i],
            bits=bits_of_rank(rank, self.size_bits),
            low=bits_of_rank(interval[1], self.size_bits),
            high=bits_of_rank(interval[0], self.size_bits),
            method=method,
            rank=rank,
            log_perplexity=float(self.costs[i]),
            size_bits=self.size_bits,
            is_bound=is_bound,
            confidence=self.confidence,
            expansions=self.expansions + expansions,
            rests_on=rests_on,
        )

    def counted(self, i: int, rank: int, fewest: int, most: int, expansions: int) -> ExposureEstimate:
        """An estimate from a count of everything: exact, unless rounding leaves ties undecided."""
        rests_on = f"a count of all {self.noun} that cost at most as much"
        if fewest == most:
            return self.estimate(i, "exact", most, (most, most), expansions, rests_on)
        rests_on += (
            f"; {most - fewest:,} of them are within {self.rounding.bits:.2g} bits of this one, which is what rounding "
            "does to a cost in this model"
        )
        rank = min(most, max(fewest, rank))
        return self.estimate(i, "counted", rank, (fewest, most), expansions, rests_on)


@dataclass(frozen=True)
class TreeCase(Case):
    """Secrets of one tree.

    Attributes:
        tree: Where they live.
        paths: Their tokens, one row each.
        precision: How many bits wide an interval may be; None: as narrow as it gets.
        memory: The limit for model states, in bytes.
        progress: Called during an exact count.
    """

    tree: SecretTree
    paths: NDArray[np.int32]
    precision: float | None
    memory: int
    progress: Progress | None

    @property
    def size(self) -> int:
        """|R|."""
        return self.tree.size

    @property
    def size_bits(self) -> float:
        """log2 |R|."""
        return self.tree.bits

    @property
    def bound(self) -> float:
        """Nothing above this cost is of interest; the slack keeps the secrets below it, whatever the rounding."""
        return float(self.costs.max()) + 2.0 * self.rounding.bits

    def references(self, seed: int) -> UniformSample:
        """Secrets drawn uniformly from all others, scored."""
        return uniform_walks(self.tree, self.samples, seed=seed, exclude=self.secrets, memory=self.memory)

    def only(self, which: Sequence[int]) -> TreeCase:
        """The same for some of the secrets."""
        return replace(
            self,
            secrets=[self.secrets[i] for i in which],
            paths=self.paths[list(which)],
            costs=self.costs[list(which)],
        )


def measure_possible(
    case: AnyCase, secrets: Sequence[str], method: Callable[[AnyCase], list[ExposureEstimate]]
) -> list[ExposureEstimate]:
    """Measure those secrets of a case that the model holds possible; the others have the last rank.

    Args:
        case: All secrets that were given, each once.
        secrets: As they were given: each is answered, in this order.
        method: What measures the possible ones.
    """
    possible = np.flatnonzero(np.isfinite(case.costs)).tolist()
    found: dict[str, ExposureEstimate] = {}
    for i in set(range(len(case))) - set(possible):
        rests_on = "the model holds it impossible, and every other secret costs at most as much"
        found[case.secrets[i]] = case.estimate(i, "exact", case.size, (case.size, case.size), 0, rests_on)
    if possible:
        found.update((estimate.secret, estimate) for estimate in method(case.only(possible)))
    return [found[secret] for secret in secrets]


def check_list(secrets: Sequence[str]) -> None:
    """Refuse a text where a list of texts is expected.

    Raises:
        ArgumentError: It is one.
    """
    if isinstance(secrets, str):
        raise ArgumentError(f"secrets is the text {secrets!r}; expected a list of texts: [{secrets!r}].")


def bits_of_rank(rank: int | float, size_bits: float) -> float:
    """A rank as exposure, between 0 and log2 |R|."""
    return min(size_bits, max(0.0, size_bits - math.log2(rank)))
