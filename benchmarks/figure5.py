"""`python -m benchmarks.figure5 FILE`: the paper's Figure 5, for checkpoints of one training run.

How many nodes a search expands until it has found a canary, against the canary's exact exposure at that time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.models import Recipe, Subject, train
from lightning_exposure import extract, measure_exposure
from lightning_exposure.report.figures.paper import expansions_against_exposure, save

_BUDGET = 60_000
_RECIPE = Recipe(characters=100_000, repetitions=(24,), epochs=12, batch_size=64)


def points(recipe: Recipe = _RECIPE, *, every: int = 20, budget: int = _BUDGET) -> list[tuple[float, int, bool]]:
    """(exposure, expansions, found) after every few batches of a training run."""
    found: list[tuple[float, int, bool]] = []

    def watch(subject: Subject, batches: int) -> None:
        if batches % every:
            return
        tree = subject.tree(recipe.digits)
        (estimate,) = measure_exposure(tree, [subject.canaries[0].text], budget=budget)
        if estimate.method not in ("exact", "counted"):  # too many are more likely: the search would not come to it
            found.append((estimate.bits, budget, False))
            return
        attack = extract(tree, top_k=int(estimate.rank), budget=budget, largest_batch=64)
        hit = any(candidate.text == estimate.secret for candidate in attack.candidates)
        found.append((estimate.bits, attack.expansions, hit))
        print(f"[batch {batches}: {estimate.bits:.1f} bits, {attack.expansions:,} expansions]", file=sys.stderr)

    train(recipe, watch=watch)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figure5", description=__doc__)
    parser.add_argument("file", type=Path, help="where to put the figure (.png or .svg)")
    options = parser.parse_args()
    save(expansions_against_exposure(points(), size_bits=29.9), options.file)


if __name__ == "__main__":
    main()
