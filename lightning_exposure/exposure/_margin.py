"""By how much a secret of rank 1 is ahead of the next one: what exposure, which ends at its ceiling, cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_exposure.errors import BudgetError
from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tokenization.paths import PathFinder
from lightning_exposure.walks import best_first, enumerate_leaves

_EXPANSIONS = 1024
"""Each of the two searches for the next secret ends after this many, or after a few times what the measurement took,
but never after more than the measurement might have taken."""

_AS_LONG = 4
"""How many times the expansions of the measurement."""

_DEEPER = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 11.0, 14.0, 18.0, 22.0, 27.0, 32.0)
"""Bits beyond the secret: each of these walks costs about as much as all before it together, or next to nothing."""


@dataclass(frozen=True)
class _Next:
    """By how many bits the cheapest other secret is behind, or is at least; None if there is no other."""

    margin: float | None
    is_bound: bool
    expansions: int


def with_margins(case: TreeCase, estimates: Sequence[ExposureEstimate]) -> list[ExposureEstimate]:
    """The estimates; the one that was counted to be of rank 1 with its margin.

    Args:
        case: What was measured.
        estimates: What came out.
    """
    first = next((it for it in estimates if it.rank == 1 and it.method in ("exact", "counted")), None)
    if first is None or case.size == 1:
        return list(estimates)
    number = case.secrets.index(first.secret)
    budget = max(_EXPANSIONS, min(_AS_LONG * first.expansions, case.budget))
    found = _cheapest_first(case, number, budget)
    if found.is_bound:
        found = _deeper_and_deeper(case, number, budget, found)
    margin = found.margin
    if margin is None or margin <= case.rounding.bits:
        return list(estimates)  # nothing that rounding could not have done, or no other secret is possible at all
    spent = first.expansions + found.expansions
    return [
        replace(it, margin_bits=margin, margin_is_bound=found.is_bound, expansions=spent)
        if it.secret == first.secret
        else it
        for it in estimates
    ]


def _cheapest_first(case: TreeCase, number: int, budget: int) -> _Next:
    """As the shortest path goes: in batches that grow, which is fast where secrets are short and of few bits."""
    found = best_first(case.tree, 2, budget=budget, memory=case.memory)
    own = [row for _, row in PathFinder(case.paths[[number]]).find(found.paths)]
    cost = float(found.costs[own[0]]) if own else float(case.costs[number])
    others = [float(other) for row, other in enumerate(found.costs) if row not in own]
    if found.ended_by == "proof":
        return _Next(others[0] - cost if others else None, False, found.expansions)
    return _Next(min([*others, found.lower_bound]) - cost, True, found.expansions)


def _deeper_and_deeper(case: TreeCase, number: int, budget: int, known: _Next) -> _Next:
    """As exact counts go: everything below a bound, and then below a larger one, until another secret is there.

    A long secret that was memorized stands at the end of a path of very cheap tokens. Batches read all that hangs
    beside that path, a walk with a bound hardly any of it.
    """
    finder, spent = PathFinder(case.paths[[number]]), known.expansions
    cost = float(case.costs[number])
    for step in _DEEPER:
        cheapest, read = np.inf, 0
        try:
            for leaves in enumerate_leaves(case.tree, cost + step, budget=budget, memory=case.memory):
                own = [row for _, row in finder.find(leaves.paths)]
                cheapest = min(cheapest, np.delete(leaves.costs, own).min(initial=np.inf))
                read = leaves.expansions
        except BudgetError:
            return replace(known, expansions=spent + budget)
        spent, budget = spent + read, budget - read
        if cheapest < np.inf:
            return _Next(float(cheapest) - cost, False, spent)
        known = _Next(max(known.margin or step, step), True, spent)
        if budget < 1:
            break
    return known
