"""A model of words: are numbers written as digits more exposed than numbers written as words?

Canaries like "my number is 2 8 1 2 6 5" and "my number is two eight one two six five" are inserted into what Python's
help() says, up to 16 times. Every digit and every word is one token of a vocabulary of up to 10,000.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from statistics import mean

import lightning.pytorch as pl
import torch

from lightning_exposure import CanarySet, ExposureEstimate, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.data import TextDataModule
from lightning_exposure.modules import LanguageModel

INSERTIONS = (0, 1, 4, 16)
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
FORMATS = (
    SecretFormat("my number is # # # # # #", name="digits"),
    SecretFormat("my number is {digit} {digit} {digit} {digit} {digit} {digit}", name="words", digit=NAMES),
)


def train(canaries: CanarySet, options: argparse.Namespace) -> tuple[LanguageModel, TextDataModule]:
    """A model that has read the text with the canaries in it."""
    data = TextDataModule(
        options.text, level="word", words=options.words, window=20, batch_size=32, canaries=canaries,
        whole_canaries=True, seed=options.seed,
    )  # fmt: skip
    data.setup()
    pl.seed_everything(options.seed)
    size, vocabulary = options.hidden_size, data.tokenizer.vocab_size
    model = LanguageModel(
        "lstm", vocab_size=vocabulary, hidden_size=size, embedding_size=size, num_layers=1, optimizer="adam", lr=0.003
    )
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=options.epochs, num_sanity_val_steps=0, **quiet)
    began = time.perf_counter()
    trainer.fit(model, data)
    losses = [float(trainer.callback_metrics[name]) for name in ("train_bpc_epoch", "val_bpc")]
    print(
        f"{vocabulary:,} words, {options.epochs} epochs in {time.perf_counter() - began:.0f} s: "
        f"{losses[0]:.2f} bits a word, {losses[1]:.2f} on the rest of the text"
    )
    return model, data


def print_table(canaries: CanarySet, found: Mapping[str, Sequence[ExposureEstimate]]) -> None:
    """For each number of insertions: the mean exposure, and how many of the estimates are exact."""
    print(f"\nMean exposure in bits (of {FORMATS[0].bits:.1f}), and how many of the canaries were counted exactly")
    print("inserted  canaries  " + "  ".join(f"{name:>7}  {'exact':>5}" for name in found))
    by_text = {estimate.secret: estimate for estimates in found.values() for estimate in estimates}
    for count in INSERTIONS:
        columns = []
        for format in FORMATS:
            chosen = [c for c in canaries if c.format == format and c.repetitions == count]
            estimates = [by_text[canary.text] for canary in chosen]
            exact = sum(estimate.method == "exact" for estimate in estimates)
            columns.append(f"{mean(estimate.bits for estimate in estimates):7.2f}  {exact:5}")
        print(f"{count:8}  {len(chosen):8}  " + "  ".join(columns))


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="a small model and a part of the text, in seconds")
    parser.add_argument("--text", help="the path of a text file (default: what Python's help() says)")
    parser.add_argument("--words", type=int, default=10_000, help="the most frequent words (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--hidden_size", type=int, default=100, help="units of the LSTM (default: %(default)s)")
    parser.add_argument("--canaries", type=int, default=6, help="for each number of insertions (default: %(default)s)")
    parser.add_argument(
        "--budget", type=int, default=20_000, help="expansions of an exact count (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    options = parser.parse_args()
    if options.fast:
        options.words, options.epochs, options.hidden_size, options.canaries = 300, 1, 16, 1
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in ("The '\\w+_dataloader' does not have many workers", ".*LeafSpec"):
        warnings.filterwarnings("ignore", message=message)

    repetitions = [count for count in INSERTIONS for _ in range(options.canaries)]
    drawn = (CanarySet.draw(format, repetitions=repetitions, seed=options.seed) for format in FORMATS)
    canaries = CanarySet([canary for part in drawn for canary in part])
    model, data = train(canaries, options)
    found = {}
    for format, part in canaries.by_format().items():
        began = time.perf_counter()
        tree = SecretTree(model, format, data.tokenizer)
        found[format.name] = measure_exposure(tree, [canary.text for canary in part], budget=options.budget)
        print(f"{format.name}: {tree.size:,} secrets, measured in {time.perf_counter() - began:.1f} s")
    print_table(canaries, found)


if __name__ == "__main__":
    main()
