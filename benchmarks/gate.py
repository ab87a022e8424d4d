"""How often does a gate stop a run that it should not, and how soon one that it should? `python -m benchmarks.gate`.

Simulated at the level of intervals: an estimate is normal around the true exposure, and its interval misses exactly as
often as it may. A sample that is four times as large has half the spread. The gate is the one that trains with you:
`lightning_exposure.measuring.gate.take_look`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lightning_exposure.measuring.gate import EXCEEDED, AlphaSpending, Bounds, take_look

LIMIT, ALPHA, LOOKS, CANARIES = 10.0, 0.05, 50, 20
SPREAD = 0.3
"""The standard deviation of an estimate with the usual effort, in bits."""

Exposures = NDArray[np.float64]
"""True exposures, one row per look."""


@dataclass(frozen=True)
class Ended:
    """How one run ended.

    Attributes:
        look: The look that stopped it, counted from 0; None: none did.
        effort: What all measurements took, in units of a usual one.
    """

    look: int | None
    effort: float


class Estimator:
    """Measures simulated exposures.

    Args:
        generator: Of the estimates.
        tails: 2: half of what an interval may miss is at its lower end; 1: all of it, the worst case.
    """

    def __init__(self, generator: np.random.Generator, tails: int = 2) -> None:
        self._generator = generator
        self._tails = tails
        self.effort = 0.0

    def measure(self, truth: Exposures, effort: float, error: float) -> list[Bounds]:
        """Intervals for some exposures, which share their walks."""
        self.effort += effort
        spread = SPREAD / effort**0.5
        margin = spread * _quantile(error / self._tails)
        found = truth + spread * self._generator.standard_normal(len(truth))
        return [Bounds(value - margin, value + margin) for value in found.tolist()]


@cache
def _quantile(error: float) -> float:
    return float(stats.norm.isf(error))


def gated(truth: Exposures, generator: np.random.Generator, tails: int = 2) -> Ended:
    """A run with our gate."""
    estimator, spending = Estimator(generator, tails), AlphaSpending(ALPHA)
    names = [str(canary) for canary in range(truth.shape[1])]
    for number, row in enumerate(truth):

        def measure(ids: Sequence[str], effort: int, error: float, row: Exposures = row) -> dict[str, Bounds]:
            return dict(zip(ids, estimator.measure(row[[int(name) for name in ids]], effort, error), strict=True))

        first = dict(zip(names, estimator.measure(row, 1, ALPHA), strict=True))
        if take_look(first, LIMIT, spending, measure, error=ALPHA).answer == EXCEEDED:
            return Ended(number, estimator.effort)
    return Ended(None, estimator.effort)


def bonferroni(truth: Exposures, generator: np.random.Generator, tails: int = 2, effort: float = 1.0) -> Ended:
    """A run that is stopped by the first interval at a confidence of 1 - alpha / (looks x canaries)."""
    estimator = Estimator(generator, tails)
    for number, row in enumerate(truth):
        found = estimator.measure(row, effort, ALPHA / truth.size)
        if max(each.low for each in found) > LIMIT:
            return Ended(number, estimator.effort)
    return Ended(None, estimator.effort)


# ---- what the true exposures are --------------------------------------------------------------------------------


def at_the_limit() -> Exposures:
    """The worst null: all canaries, all the time."""
    return np.full((LOOKS, CANARIES), LIMIT)


def up_to_the_limit() -> Exposures:
    """Another null: all of them rise, and end there."""
    return np.repeat(np.linspace(LIMIT - 3.0, LIMIT, LOOKS)[:, None], CANARIES, axis=1)


def one_rises(above: float = 1.5) -> Exposures:
    """No null: one canary passes the limit in the middle of the run, and the others stay below it."""
    truth = np.full((LOOKS, CANARIES), LIMIT - 3.0)
    truth[:, 0] = np.linspace(LIMIT - above, LIMIT + above, LOOKS)
    return truth


def one_stays_above(by: float) -> Exposures:
    """No null: one canary is above the limit from the beginning, by a little."""
    truth = np.full((LOOKS, CANARIES), LIMIT - 3.0)
    truth[:, 0] = LIMIT + by
    return truth


def simulate(run: Callable[..., Ended], truth: Exposures, runs: int, **settings: float) -> list[Ended]:
    """Many runs, each with a generator of its own."""
    return [run(truth, np.random.default_rng([7, number]), **settings) for number in range(runs)]


def stopped(ended: Sequence[Ended]) -> float:
    """Which share of them was stopped."""
    return sum(each.look is not None for each in ended) / len(ended)


def effort_per_look(ended: Sequence[Ended]) -> float:
    """What a look took, in units of a usual measurement."""
    return float(np.mean([each.effort / (LOOKS if each.look is None else each.look + 1) for each in ended]))


Way = tuple[Callable[..., Ended], dict[str, float]]


def _print_false_alarms(ways: dict[str, Way], runs: int) -> None:
    print("| no exposure above the limit: runs stopped | all at the limit | the same, worst case | all rise to it |")
    print("| --- | --- | --- | --- |")
    for name, (way, settings) in ways.items():
        ended = [
            simulate(way, at_the_limit(), runs, **settings),
            simulate(way, at_the_limit(), runs, tails=1, **settings),
            simulate(way, up_to_the_limit(), runs, **settings),
        ]
        print(f"| {name} | {' | '.join(f'{100 * stopped(each):.1f}%' for each in ended)} |")


def _print_power(ways: dict[str, Way], runs: int) -> None:
    above = (0.25, 0.5, 1.0)
    columns = " | ".join(f"stopped at {by:g} above" for by in above)
    print(f"\n| one exposure above the limit | {columns} | rising: bits above when stopped | samples per look |")
    print(f"| --- |{' --- |' * (len(above) + 2)}")
    rises = one_rises()
    for name, (way, settings) in ways.items():
        shares = [f"{100 * stopped(simulate(way, one_stays_above(by), runs, **settings)):.1f}%" for by in above]
        ended = simulate(way, rises, runs, **settings)
        late = np.mean([rises[-1 if each.look is None else each.look, 0] - LIMIT for each in ended])
        print(f"| {name} | {' | '.join(shares)} | {late:.2f} | {effort_per_look(ended):.1f} |")


def main(runs: int) -> None:
    """Print both tables."""
    print(f"{runs:,} runs of {LOOKS} looks at {CANARIES} canaries, limit {LIMIT:g} bits, alpha {ALPHA:g}\n")
    effort = float(np.ceil(effort_per_look(simulate(gated, one_rises(), runs))))
    ways: dict[str, Way] = {
        "the gate": (gated, {}),
        "Bonferroni": (bonferroni, {}),
        f"Bonferroni, {effort:g} times the samples": (bonferroni, {"effort": effort}),
    }
    _print_false_alarms(ways, runs)
    _print_power(ways, runs)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
