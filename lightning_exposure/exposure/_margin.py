"""By how much a secret of rank 1 is ahead of the next one: what exposure, which ends at its ceiling, cannot tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.tokenization.paths import PathFinder
from lightning_exposure.walks import best_first

_EXPANSIONS = 1024
"""The next secret is looked for no longer than this, or than a few times what the measurement took, if that is more."""

_AS_LONG = 4
"""How many times the expansions of the measurement: cheapest first, the search reads all of them again, in batches that
overshoot, before it comes to the secret itself, and only then to the next one."""


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
    found = best_first(case.tree, 2, budget=max(_EXPANSIONS, _AS_LONG * first.expansions), memory=case.memory)
    own = [row for _, row in PathFinder(case.paths[[number]]).find(found.paths)]
    cost = float(found.costs[own[0]]) if own else float(case.costs[number])
    others = [float(other) for row, other in enumerate(found.costs) if row not in own]
    is_bound = found.ended_by != "proof"
    if not is_bound and not others:
        return list(estimates)  # no other secret is possible at all
    margin = (min([*others, found.lower_bound]) if is_bound else others[0]) - cost
    if margin <= case.rounding.bits:
        return list(estimates)  # nothing that rounding could not have done
    spent = first.expansions + found.expansions
    return [
        replace(it, margin_bits=margin, margin_is_bound=is_bound, expansions=spent) if it.secret == first.secret else it
        for it in estimates
    ]
