"""Comparisons that a study makes, the same for whoever runs it, and corrected for how many they are.

The secrets of a seed are the same for all settings of a study, so that settings are compared seed by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lightning_exposure.studies._tables import t_interval
from lightning_exposure.studies.figures import to_float
from lightning_exposure.studies.study import Row, Value

FloatArray = NDArray[np.float64]

_SHUFFLES = 9999

Which = Mapping[str, Value] | Callable[[Row], bool]
"""Some of the rows: by the values of columns, or by a question asked of each."""


@dataclass(frozen=True)
class TableTest:
    """A question that was asked of a table.

    Args:
        found: What the table says, in words and numbers.
        test: Which test was made of it, with what.
        pvalue: Its two-sided p-value, by itself; None if nothing varies, or there is too little to test.
    """

    found: str
    test: str
    pvalue: float | None


def paired(name: str, rows: Sequence[Row], column: str, one: Which, other: Which, unit: str = "bits") -> TableTest:
    """How much larger a column is for one kind of rows than for another, seed by seed (a paired t test).

    Args:
        name: What is compared, in words.
        rows: Of the table.
        column: Whose means over the rows of a seed are compared.
        one: Which rows.
        other: Against which.
        unit: Of the column.

    Example:
        >>> rows = [{"way": way, "seed": seed, "exposure_bits": bits + seed * seed}
        ...         for way, bits in (("noise", 1.0), ("plain", 9.0)) for seed in range(3)]
        >>> paired("noise instead of none", rows, "exposure_bits", {"way": "noise"}, {"way": "plain"}).found
        'noise instead of none: -8.00 bits'
    """
    means = [_by_seed(rows, column, which) for which in (one, other)]
    differences = [means[0][seed] - means[1][seed] for seed in means[0] if seed in means[1]]
    if not differences:
        return TableTest(f"{name}: nothing to compare", "no pairs", None)
    interval = t_interval(differences)
    found = f"{name}: {np.mean(differences):+.2f}"
    if interval is None or np.ptp(differences) < 1e-9:
        return TableTest(f"{found} {unit}", _pairs(differences, "the same in all of them"), None)
    pvalue = float(stats.ttest_1samp(differences, 0.0).pvalue)
    ends = f" [{interval[0]:+.2f}, {interval[1]:+.2f}]"
    return TableTest(f"{found}{ends} {unit}", _pairs(differences, "paired t"), pvalue)


def _pairs(differences: Sequence[float], what: str) -> str:
    return f"{what}, {len(differences)} pair{'' if len(differences) == 1 else 's'}"


def _by_seed(rows: Sequence[Row], column: str, which: Which) -> dict[Value, float]:
    found: dict[Value, list[float]] = {}
    for row in chosen(rows, which):
        if isinstance(value := row[column], int | float):
            found.setdefault(row["seed"], []).append(float(value))
    return {seed: float(np.mean(values)) for seed, values in found.items()}


def correlated(name: str, rows: Sequence[Row], x: str, y: str) -> TableTest:
    """Whether one column grows with another: rank correlations (Spearman) within each seed, and their mean.

    What is shuffled for the p-value are the rows of one seed among themselves: they share a secret, and a study with
    many settings of few secrets would otherwise be sure of what these few secrets happen to do.
    """
    seeds: dict[Value, list[tuple[float, float]]] = {}
    for row in rows:
        if all(isinstance(row[column], int | float) for column in (x, y)):
            seeds.setdefault(row["seed"], []).append((to_float(row[x]), to_float(row[y])))
    # As standardized ranks, a correlation is a mean of products.
    sides = [_ranks(pairs) for pairs in seeds.values()]
    ranks = [side for side in sides if side is not None]
    test = f"Spearman within {len(ranks)} seed{'' if len(ranks) == 1 else 's'}, {_SHUFFLES:,} shuffles"
    if not ranks:
        return TableTest(f"{name}: nothing to correlate", test, None)
    found = float(np.mean([np.mean(one * other) for one, other in ranks]))
    draws = np.random.default_rng(0)
    shuffled = np.zeros(_SHUFFLES)
    for one, other in ranks:
        orders = draws.permuted(np.tile(one, (_SHUFFLES, 1)), axis=1)
        shuffled += (orders @ other) / (len(one) * len(ranks))
    extreme = int((np.abs(shuffled) >= abs(found) - 1e-9).sum())
    return TableTest(f"{name}: rank correlation {found:+.2f}", test, (1 + extreme) / (1 + _SHUFFLES))


def _ranks(pairs: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray] | None:
    """Both sides as ranks with mean 0 and variance 1; None if one of them does not vary."""
    sides = [stats.rankdata(side) for side in zip(*pairs, strict=True)]
    if any(np.ptp(side) == 0 for side in sides):
        return None
    one, other = ((side - side.mean()) / side.std() for side in sides)
    return one, other


def above_chance(name: str, rows: Sequence[Row]) -> TableTest:
    """Whether secrets are more exposed than by luck: an exact rank among secrets never seen is uniform (Fisher)."""
    bits = [float(value) for row in rows if isinstance(value := row["exposure_bits"], int | float)]
    test = f"Fisher's method, {len(bits)} exact ranks"
    if not bits:
        return TableTest(f"{name}: nothing to test", test, None)
    pvalue = float(stats.combine_pvalues([2.0**-one for one in bits], method="fisher").pvalue)
    return TableTest(f"{name}: {np.mean(bits):.2f} bits, where luck has 1.44 on average", test, pvalue)


def chosen(rows: Sequence[Row], which: Which) -> list[Row]:
    """Some of the rows.

    >>> chosen([{"way": "noise", "epoch": 1}, {"way": "noise", "epoch": 2}], {"way": "noise", "epoch": 2})
    [{'way': 'noise', 'epoch': 2}]
    """
    if callable(which):
        return [row for row in rows if which(row)]
    return [row for row in rows if all(row[name] == value for name, value in which.items())]


def sentences(comparisons: Iterable[TableTest]) -> list[str]:
    """Comparisons in words, each with its p-value by itself and corrected for their number (Holm).

    >>> sentences([TableTest("a", "t", 0.01), TableTest("b", "t", 0.04), TableTest("c", "t", None)])
    ['a (t; p = 0.01, corrected 0.02)', 'b (t; p = 0.04, corrected 0.04)', 'c (t)']
    """
    made = list(comparisons)
    tested = [comparison.pvalue for comparison in made if comparison.pvalue is not None]
    corrected = iter(holm(tested))
    said = []
    for comparison in made:
        p = ""
        if comparison.pvalue is not None:
            more = f", corrected {next(corrected):.2g}" if len(tested) > 1 else ""
            p = f"; p = {comparison.pvalue:.2g}{more}"
        said.append(f"{comparison.found} ({comparison.test}{p})")
    return said


def holm(pvalues: Sequence[float]) -> list[float]:
    """P-values of which none is smaller than allowed more often than one alone would be, in the order given.

    >>> holm([0.01, 0.5, 0.02])
    [0.03, 0.5, 0.04]
    """
    found, largest = [0.0] * len(pvalues), 0.0
    for place, index in enumerate(sorted(range(len(pvalues)), key=pvalues.__getitem__)):
        largest = max(largest, min(1.0, (len(pvalues) - place) * pvalues[index]))
        found[index] = largest
    return found
