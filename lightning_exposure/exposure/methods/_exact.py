"""Exact: a count of every secret that costs at most as much."""

from __future__ import annotations

from dataclasses import replace

from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure._result import ExposureEstimate
from lightning_exposure.exposure.methods._registered import METHODS
from lightning_exposure.walks import Ranks, count_ranks

_ENLARGED = 4.0
"""By how much rounding that showed is enlarged: there may be more than what was seen."""


@METHODS.register("exact", priority=3)
def measure_by_counting(case: TreeCase) -> list[ExposureEstimate]:
    """The exact exposure of each secret, or between what rounding leaves open.

    Raises:
        BudgetError: The count needs more expansions than the budget.
    """
    case, ranks = count(case)
    if ranks.cut is not None:
        raise ranks.cut
    return estimates_from_ranks(case, ranks)


def count(case: TreeCase) -> tuple[TreeCase, Ranks]:
    """Count; and again with wider ties, if the walk itself shows that costs are rounded by more than was measured.

    Returns:
        The case with the rounding that holds, and the ranks.
    """
    spent = 0
    while True:
        ranks = count_ranks(
            case.walked,
            case.paths,
            case.costs,
            case.rounding,
            prior=case.log_prior,
            weigh=None if case.prior is None else case.prior.of_found,
            budget=case.budget,
            memory=case.memory,
            progress=case.progress,
        )
        spent += ranks.expansions
        if ranks.cut is not None or ranks.drift <= case.rounding.bits:
            return case, replace(ranks, expansions=spent)
        wider = max(2.0 * case.rounding.bits, min(_ENLARGED * ranks.drift, 1.0))
        case = replace(case, rounding=replace(case.rounding, bits=wider, repeatable=False))


def estimates_from_ranks(case: TreeCase, ranks: Ranks) -> list[ExposureEstimate]:
    """What a finished count says."""
    return case.counted_all((ranks.ranks, ranks.fewest, ranks.most), ranks.expansions, ranks.masses)
