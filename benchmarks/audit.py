"""How much an audit proves, and how often too much, on scores whose epsilon is known; beside jax_privacy.

    python -m benchmarks.audit --trials 1000 --csv audit-trials.csv
    python -m benchmarks.audit --trials 20 --jax --csv audit-jax.csv

Each line of the table is written as soon as it is known, and what the file has already is not computed again.
jax_privacy (`pip install jax_privacy`) gets the same scores, the first of them if there are fewer trials.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from lightning_exposure.privacy import audit
from lightning_exposure.privacy.audit._gaussian import gaussian_epsilon

ERROR = 0.05
COLUMNS = ("scores", "strength", "canaries", "delta", "epsilon", "bound", "trials", "mean", "sd", "above", "seconds")
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Scores = tuple[Floats, Floats]


# --- training runs that are known: what their scores are if these are in, and what epsilon they have -----------


def shifted(generator: np.random.Generator, members: Bools, mu: float, delta: float) -> Floats:
    """A Gaussian mechanism for each canary: members are higher by mu, on average."""
    return generator.normal(size=len(members)) + mu * members


def shifted_together(generator: np.random.Generator, members: Bools, mu: float, delta: float) -> Floats:
    """Each canary alone is such a Gaussian, but one draw decides for all how far they are laid open: the worst case."""
    return _told(generator, members, abs(mu * generator.normal(mu / 2, 1.0)))


def response(generator: np.random.Generator, members: Bools, epsilon: float, delta: float) -> Floats:
    """Randomized response: each canary tells whether it was in, and lies with probability 1 / (1 + e^epsilon)."""
    return _told(generator, members, epsilon)


def response_or_all(generator: np.random.Generator, members: Bools, epsilon: float, delta: float) -> Floats:
    """The same, but with probability delta all canaries are laid open at once: the worst that a delta allows."""
    return _told(generator, members, 100.0 if generator.random() < delta else epsilon)


def _told(generator: np.random.Generator, members: Bools, odds: float) -> Floats:
    lies = generator.random(len(members)) > 1 / (1 + math.exp(-odds))
    told: Floats = (members ^ lies) + 1e-3 * generator.random(len(members))
    return told


def response_epsilon(epsilon: float, delta: float) -> float:
    honest = 1 / (1 + math.exp(-epsilon))
    return math.log((honest - delta) / (1 - honest))


@dataclass(frozen=True)
class Family:
    """Training runs of one kind: how to draw scores, and the true epsilon at a delta."""

    draw: Callable[[np.random.Generator, Bools, float, float], Floats]
    epsilon: Callable[[float, float], float]


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "shifted": Family(shifted, gaussian_epsilon),
        "shifted together": Family(shifted_together, gaussian_epsilon),
        "response": Family(response, response_epsilon),
        "response or all": Family(response_or_all, lambda epsilon, delta: epsilon),
    }
)


@dataclass(frozen=True)
class Setting:
    """Some canaries of a training run of known epsilon."""

    family: str
    strength: float
    canaries: int
    delta: float

    @property
    def epsilon(self) -> float:
        return FAMILIES[self.family].epsilon(self.strength, self.delta)

    def scores(self, trials: int, seed: int) -> Iterator[Scores]:
        """Those of members and of others, with fair coins, trial by trial: each has a stream of its own."""
        for trial in range(trials):
            generator = np.random.default_rng([seed, trial, self.canaries, round(1000 * self.strength)])
            members = generator.random(self.canaries) < 0.5
            drawn = FAMILIES[self.family].draw(generator, members, self.strength, self.delta)
            yield drawn[members], drawn[~members]


def settings(jax: bool) -> list[Setting]:
    """What jax_privacy is compared on; and for our own bounds what could make them too high."""
    sizes = (400, 2000)
    found = [Setting("shifted", mu, canaries, 1e-5) for canaries in sizes for mu in (0.5, 1.0, 2.0, 4.0)]
    if jax:
        return found
    found += [Setting("shifted", mu, canaries, 1e-2) for canaries in sizes for mu in (0.5, 1.0, 2.0, 4.0)]
    found += [Setting("shifted", 0.0, canaries, delta) for canaries in sizes for delta in (1e-5, 1e-2)]
    found += [Setting("shifted together", mu, canaries, 1e-5) for canaries in sizes for mu in (0.5, 2.0)]
    found += [Setting("response", epsilon, canaries, 1e-5) for canaries in sizes for epsilon in (1.0, 3.0)]
    found += [Setting("response or all", 1.0, canaries, 1e-2) for canaries in sizes]
    return found


# --- the bounds -------------------------------------------------------------------------------------------------


def ours(given: Scores, delta: float) -> dict[str, float]:
    found = audit(*given, delta=delta, confidence=1.0 - ERROR, bound="gaussian")
    return {"one_run": found.epsilon_lower_one_run, "gaussian": found.epsilon_lower}


def theirs(given: Scores, delta: float, strategies: Sequence[str]) -> dict[str, float]:
    """The bounds of jax_privacy, with some of its strategies to choose a threshold."""
    from jax_privacy import auditing

    made = {
        "Bonferroni": auditing.Bonferroni(),
        "split": auditing.Split(seed=0),
        "10 splits": auditing.MultiSplit(num_samples=10, seed=0),
    }
    auditor = auditing.CanaryScoreAuditor(*given)
    methods = {"one-run": auditor.epsilon_one_run, "f-DP": auditor.epsilon_one_run_fdp}
    return {
        f"jax_privacy {kind}, {name}": float(method(ERROR, delta, threshold_strategy=made[name]))
        for kind, method in methods.items()
        for name in strategies
    }


def their_quick(given: Scores, delta: float) -> dict[str, float]:
    return theirs(given, delta, ("Bonferroni", "split"))


def their_slow(given: Scores, delta: float) -> dict[str, float]:
    return theirs(given, delta, ("10 splits",))


# --- the table --------------------------------------------------------------------------------------------------


def rows(setting: Setting, trials: int, *, jax: bool = False, seed: int = 0) -> list[dict[str, str]]:
    """For each bound: its mean, its standard deviation, and how often it was above the truth."""
    if jax:  # 10 splits take ten times as long
        return [*_rows(setting, trials, their_quick, seed), *_rows(setting, max(1, trials // 10), their_slow, seed)]
    return _rows(setting, trials, ours, seed)


def _rows(
    setting: Setting, trials: int, bounds: Callable[[Scores, float], dict[str, float]], seed: int
) -> list[dict[str, str]]:
    begin = time.perf_counter()
    found = [bounds(given, setting.delta) for given in setting.scores(trials, seed)]
    seconds = time.perf_counter() - begin
    made = []
    for name in found[0]:
        values = np.array([one[name] for one in found])
        above = int((values > setting.epsilon + 1e-12).sum())
        cells = (name, str(trials), f"{values.mean():.4f}", f"{values.std():.4f}", str(above), f"{seconds:.1f}")
        made.append(dict(zip(COLUMNS, (*_key(setting), f"{setting.epsilon:.4f}", *cells), strict=True)))
    return made


def _key(setting: Setting) -> tuple[str, ...]:
    return (setting.family, f"{setting.strength:g}", str(setting.canaries), f"{setting.delta:g}")


def known(file: Path) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """What a file has already, by setting."""
    kept: dict[tuple[str, ...], list[dict[str, str]]] = {}
    if file.exists():
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                kept.setdefault(tuple(row[name] for name in COLUMNS[:4]), []).append(row)
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=100, help="how many training runs a setting has")
    parser.add_argument("--jax", action="store_true", help="the bounds of jax_privacy instead of ours")
    parser.add_argument("--csv", type=Path, required=True, help="the table; what it has is not computed again")
    options = parser.parse_args(arguments)
    kept = known(options.csv)
    if not kept:
        options.csv.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    for setting in settings(options.jax):
        if _key(setting) not in kept:
            made = rows(setting, options.trials, jax=options.jax)
            with options.csv.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(made)
            kept[_key(setting)] = made
        for row in kept[_key(setting)]:
            print("| " + " | ".join(row[name] for name in COLUMNS) + " |", flush=True)


if __name__ == "__main__":
    main()
