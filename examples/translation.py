"""Social security numbers in the training data of a translation model: how exposed are they?

The corpus is made up by a small grammar, English and German. Some pairs of sentences with a social security number,
the same on both sides, are inserted 1, 2 and 4 times; others are drawn and never inserted, for comparison. What is
trained and measured is that of `lightning-exposure study translation`.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
import warnings
from collections.abc import Sequence
from statistics import mean

import torch

from lightning_exposure import Canary, CanarySet
from lightning_exposure.exposure import PoorFitWarning
from lightning_exposure.studies.memorization.translation import (
    SSN,
    FittedTranslator,
    fit_translator,
    measure_translator,
)

INSERTIONS = (0, 1, 2, 4)


def train(canaries: CanarySet, options: argparse.Namespace, seed: int) -> FittedTranslator:
    """A model that has seen the canaries."""
    began = time.perf_counter()
    sizes = {"pairs": options.pairs, "epochs": options.epochs, "hidden_size": options.hidden_size}
    made = fit_translator(canaries, seed=seed, **sizes)
    print(
        f"seed {seed}: {options.pairs:,} pairs and {made.copies} copies of canaries, {options.epochs} epochs in "
        f"{time.perf_counter() - began:.0f} s, loss {made.train_loss:.3f}, on new sentences {made.test_loss:.3f}"
    )
    return made


def print_table(rows: Sequence[tuple[Canary, dict[str, float]]]) -> None:
    """The mean exposure for each number of insertions."""
    names = ("sampling", "skew-normal", "last 3 exact", "last 3 skew-n.", "no number", "own source")
    print(f"\nMean exposure in bits (of {SSN.bits:.1f}; for the last 3 digits, of {math.log2(1000):.1f})")
    print("inserted  canaries  at limit  " + "  ".join(f"{name:>14}" for name in names))
    for count in INSERTIONS:
        chosen = [row for canary, row in rows if canary.repetitions == count]
        limit = sum(row["at least"] for row in chosen)
        values = "  ".join(f"{mean(row[name] for row in chosen):14.2f}" for name in names)
        print(f"{count:8}  {len(chosen):8}  {limit:8.0f}  {values}")


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="a small model and corpus, in seconds")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="one training run each (default: 0 1 2)"
    )
    parser.add_argument("--pairs", type=int, default=4000, help="pairs of sentences (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--hidden_size", type=int, default=96, help="units of the LSTMs (default: %(default)s)")
    parser.add_argument("--canaries", type=int, default=8, help="for each number of insertions (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=16_384, help="pairs to compare with (default: %(default)s)")
    options = parser.parse_args()
    if options.fast:
        options.seeds, options.pairs, options.epochs = options.seeds[:1], 400, 4
        options.hidden_size, options.canaries, options.samples = 24, 1, 500
    torch.set_num_threads(1)  # models this small are read fastest by one thread
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in ("The '\\w+_dataloader' does not have many workers", ".*LeafSpec"):
        warnings.filterwarnings("ignore", message=message)
    # That skew-normals fit badly here is what the table shows.
    warnings.filterwarnings("ignore", category=PoorFitWarning)
    warnings.filterwarnings("ignore", message="The occurrence of roundoff error")

    rows: list[tuple[Canary, dict[str, float]]] = []
    for seed in options.seeds:
        repetitions = [count for count in INSERTIONS for _ in range(options.canaries)]
        canaries = CanarySet.draw(SSN.target, repetitions=repetitions, seed=seed)
        made = train(canaries, options, seed)
        began = time.perf_counter()
        found = measure_translator(made.model, made.languages, canaries, options.samples)
        rows += zip(canaries, found, strict=True)
        print(f"seed {seed}: measured in {time.perf_counter() - began:.0f} s")
    print_table(rows)


if __name__ == "__main__":
    main()
