"""How much an audit proves, beside jax_privacy on the same scores: `python -m benchmarks.audit [TRIALS]`.

Members have scores that are higher by mu, on average: a Gaussian mechanism for each canary, whose epsilon is known.
jax_privacy runs beside it if it is installed (`pip install jax_privacy`), with each of its strategies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.privacy import audit
from lightning_exposure.privacy.audit._gaussian import gaussian_epsilon

SETTINGS = [(canaries, mu) for canaries in (400, 2000) for mu in (0.5, 1.0, 2.0, 4.0)]
DELTA, ERROR = 1e-5, 0.05
Scores = tuple[NDArray[np.float64], NDArray[np.float64]]
Bounds = dict[str, Callable[[Scores], float]]


def scores(generator: np.random.Generator, canaries: int, mu: float) -> Scores:
    members = generator.random(canaries) < 0.5
    drawn = generator.normal(size=canaries) + mu * members
    return drawn[members], drawn[~members]


def ours(delta: float) -> Bounds:
    return {
        "one_run": lambda given: audit(*given, delta=delta).epsilon_lower,
        "gaussian": lambda given: audit(*given, delta=delta, bound="gaussian").epsilon_lower,
    }


def theirs(delta: float) -> Bounds:
    """The bounds of jax_privacy; none if it is not installed."""
    try:
        from jax_privacy import auditing
    except ImportError:
        return {}
    strategies = {
        "Bonferroni": auditing.Bonferroni(),
        "split": auditing.Split(seed=0),
        "10 splits": auditing.MultiSplit(num_samples=10, seed=0),
    }

    def run(method: str, strategy: object) -> Callable[[Scores], float]:
        return lambda given: float(
            getattr(auditing.CanaryScoreAuditor(*given), method)(ERROR, delta, threshold_strategy=strategy)
        )

    found = {f"jax one-run, {name}": run("epsilon_one_run", strategy) for name, strategy in strategies.items()}
    return found | {f"jax f-DP, {name}": run("epsilon_one_run_fdp", strategy) for name, strategy in strategies.items()}


def rows(trials: int, their_trials: int, *, delta: float = DELTA, seed: int = 0) -> Iterator[tuple[str, ...]]:
    """For each setting and bound: its mean, and how often it was above the truth."""
    for canaries, mu in SETTINGS:
        truth = gaussian_epsilon(mu, delta)
        for bounds, count in ((ours(delta), trials), (theirs(delta), their_trials)):
            generator = np.random.default_rng(seed)
            drawn = [scores(generator, canaries, mu) for _ in range(count)]
            for name, bound in bounds.items():
                found = np.array([bound(each) for each in drawn])
                above = int((found > truth).sum())
                yield (f"{canaries:,}", f"{mu:g}", f"{truth:.2f}", name, f"{found.mean():.2f}", f"{above} of {count:,}")


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    their_trials = int(sys.argv[2]) if len(sys.argv) > 2 else max(1, trials // 10)
    delta = float(sys.argv[3]) if len(sys.argv) > 3 else DELTA
    header = ("canaries", "mu", "epsilon", "bound", "mean", "above the truth")
    print("| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |", sep="\n")
    for row in rows(trials, their_trials, delta=delta):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
