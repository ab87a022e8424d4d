"""Secrets that have been scored, and how they are to be measured: what every method starts from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure._prior import Prior
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tree.secret_tree import SecretTree
from lightning_exposure.walks import Progress, Rounding, UniformSample, uniform_walks
from lightning_exposure.walks.tallies import scales

Triple = tuple[Any, Any, Any]
"""A number by the costs as they are, at least, and at most."""

_SAME = 1e-12

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
        seed: The random seed of the walks.
        confidence: The confidence level of the intervals.
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

    def exposure(self, i: int, amount: int | float) -> float:
        """What a rank comes to as exposure; with a prior, what a mass comes to in the unit of number i."""
        return bits_of_rank(amount, self.size_bits)

    def prior_bits(self, i: int) -> float | None:
        """-log2 of the prior probability of number i; None without a prior."""
        return None

    def whole(self, i: int) -> float:
        """The mass of all secrets, in the unit of number i; without a prior, |R|."""
        return float(self.size)

    def estimate(
        self,
        i: int,
        method: str,
        rank: int | float,
        interval: tuple[float, float],
        expansions: int,
        rests_on: str,
        *,
        mass: float | None = None,
        is_bound: bool = False,
    ) -> ExposureEstimate:
        """An estimate of number i from a rank and an interval of ranks; with a prior, of masses.

        Args:
            i: Which secret.
            method: How it was found.
            rank: How many secrets cost at most as much.
            interval: The limits of the rank; with a prior, those of the mass.
            expansions: How many nodes were read, besides those for the case itself.
            rests_on: What the interval rests on.
            mass: With a prior: the prior probability of what costs at most as much, in the unit of number i.
            is_bound: Whether only a bound is known.

        Raises:
            ArgumentError: There is a prior, and the method gives no mass.
        """
        if mass is None and self.prior_bits(i) is not None:
            raise ArgumentError(
                f"method is {method!r}, which counts secrets, and prior is given; expected a method that weighs them "
                "with the prior, such as 'auto', or prior=None."
            )
        return ExposureEstimate(
            secret=self.secrets[i],
            bits=self.exposure(i, rank if mass is None else mass),
            low=self.exposure(i, interval[1]),
            high=self.exposure(i, interval[0]),
            method=method,
            rank=rank,
            log_perplexity=float(self.costs[i]),
            size_bits=self.size_bits,
            is_bound=is_bound,
            confidence=self.confidence,
            expansions=self.expansions + expansions,
            rests_on=rests_on,
            prior_bits=self.prior_bits(i),
        )

    def counted(self, i: int, ranks: Triple, expansions: int, masses: Triple | None = None) -> ExposureEstimate:
        """An estimate from a count of everything: exact, unless rounding leaves ties undecided.

        Args:
            i: Which secret.
            ranks: Its rank by the costs as they are, at least, and at most.
            expansions: How many nodes were read for it.
            masses: With a prior: the same as masses.
        """
        rank, fewest, most = ranks
        rank = min(most, max(fewest, rank))
        amount, least, largest = ranks if masses is None else masses
        rests_on = f"a count of all {self.noun} that cost at most as much"
        # Sums in another order may differ in their last digit, where there is nothing in between.
        if fewest == most or (masses is not None and largest - least <= _SAME * largest):
            mass = None if masses is None else largest
            return self.estimate(i, "exact", rank, (largest, largest), expansions, rests_on, mass=mass)
        rests_on += (
            f"; {most - fewest:,} of them are within {self.rounding.bits:.2g} bits of this one, which is what rounding "
            "does to a cost in this model"
        )
        mass = None if masses is None else min(largest, max(least, amount))
        return self.estimate(i, "counted", rank, (least, largest), expansions, rests_on, mass=mass)

    def counted_all(self, ranks: Triple, expansions: int, masses: Triple | None = None) -> list[ExposureEstimate]:
        """The same for all secrets: three lists of ranks, and with a prior three of masses."""
        of_each = zip(*ranks, strict=True)
        weighed = [None] * len(self) if masses is None else list(zip(*masses, strict=True))
        return [self.counted(i, each, expansions, weighed[i]) for i, each in enumerate(of_each)]


@dataclass(frozen=True)
class TreeCase(Case):
    """Secrets of one tree.

    Attributes:
        tree: Where they live.
        paths: Their tokens, one row each.
        precision: How many bits wide an interval may be; None: as narrow as it gets.
        memory: The limit for model states, in bytes.
        progress: Called during an exact count.
        prior: What was expected of the secrets; None: all the same, so that masses are ranks.
        log_prior: log2 of the prior probabilities of the secrets.
    """

    tree: SecretTree
    paths: NDArray[np.int32]
    precision: float | None
    memory: int
    progress: Progress | None
    prior: Prior | None = None
    log_prior: NDArray[np.float64] | None = None

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

    @property
    def walked(self) -> SecretTree:
        """The tree that walks go over."""
        return self.tree if self.prior is None else self.prior.walked

    def unit(self, i: int) -> float:
        """log2 of the unit that masses around number i are in: see `scales`."""
        return 0.0 if self.log_prior is None else float(scales(self.log_prior)[i])

    def own(self, i: int) -> float:
        """What number i itself adds to the mass, in its unit; without a prior, 1."""
        return 1.0 if self.log_prior is None else 2.0 ** (float(self.log_prior[i]) - self.unit(i))

    def whole(self, i: int) -> float:
        """The mass of all secrets, in the unit of number i; without a prior, |R|."""
        return float(self.size) if self.log_prior is None else 2.0 ** -self.unit(i)

    def weights(self, i: int, log_prior: NDArray[np.float64] | None, count: int) -> NDArray[np.float64]:
        """What other secrets weigh in the unit of number i; without a prior, 1 each."""
        return np.ones(count) if log_prior is None else np.exp2(log_prior - self.unit(i))

    def exposure(self, i: int, amount: int | float) -> float:
        """What a rank comes to as exposure; with a prior, what a mass comes to in the unit of number i."""
        if self.log_prior is None:
            return bits_of_rank(amount, self.size_bits)
        if amount <= 0.0:  # the prior excludes it, and everything that is as cheap
            return self.size_bits
        return min(max(0.0, -float(self.log_prior[i])), max(0.0, -self.unit(i) - math.log2(amount)))

    def prior_bits(self, i: int) -> float | None:
        """-log2 of the prior probability of number i; of one that is excluded, log2 |R|, which it is above."""
        if self.log_prior is None:
            return None
        excluded = self.log_prior[i] == -math.inf
        return self.size_bits if excluded else max(0.0, -float(self.log_prior[i]))

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
            log_prior=None if self.log_prior is None else self.log_prior[list(which)],
        )


def measure_possible(
    case: AnyCase, secrets: Sequence[str], method: Callable[[AnyCase], list[ExposureEstimate]]
) -> list[ExposureEstimate]:
    """Measure those secrets of a case that the model does not rule out; the others have the last rank.

    Args:
        case: All secrets that were given, each once.
        secrets: As they were given: each is answered, in this order.
        method: What measures the possible ones.
    """
    possible = np.flatnonzero(np.isfinite(case.costs)).tolist()
    found: dict[str, ExposureEstimate] = {}
    for i in set(range(len(case))) - set(possible):
        rests_on = "the model rules it out, and every other secret costs at most as much"
        whole = case.whole(i)
        mass = None if case.prior_bits(i) is None else whole
        found[case.secrets[i]] = case.estimate(i, "exact", case.size, (whole, whole), 0, rests_on, mass=mass)
    if possible:
        found.update((estimate.secret, estimate) for estimate in method(case.only(possible)))
    return [found[secret] for secret in secrets]


def bits_of_rank(rank: int | float, size_bits: float) -> float:
    """A rank as exposure, between 0 and log2 |R|."""
    return min(size_bits, max(0.0, size_bits - math.log2(rank)))
