"""Birthdays: a model likes those it has never seen. Exposure against a prior does not accuse it of having seen them.

A model of characters reads 4,000 lines such as "anna was born on 07/11/1991.", one of them 30 times over. A reference
model of the same kind reads 4,000 other lines. Then the exposure of 120 dates that neither of them has read is
measured, with the reference as prior and without, and so is that of the date which was repeated.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
import warnings
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_exposure import CharTokenizer, ExposureEstimate, SecretFormat, SecretTree, measure_exposure
from lightning_exposure.modules import LanguageModel

NAMES = ["anna", "bert", "carl", "dora", "emil", "fred", "gina", "hugo", "ines", "john", "kate", "lena", "mike", "nora"]
BORN = SecretFormat("anna was born on ##/##/####.", name="birthday")
TOKENIZER = CharTokenizer.from_text("".join(NAMES) + " was born on 0123456789/.")
BITS = (1, 2, 3, 5, 8)


def birthdays(count: int, dice: random.Random) -> list[str]:
    """Dates as people have them: years around 1975, all days alike."""
    days = []
    while len(days) < count:
        year = round(dice.gauss(1975, 15))
        if 1930 <= year <= 2010:
            days.append(date(year, 1, 1) + timedelta(days=dice.randrange(365)))
    return [f"{day:%d/%m/%Y}" for day in days]


def lines_about(dates: Sequence[str], dice: random.Random) -> list[str]:
    """A line about somebody for each date."""
    return [f"{dice.choice(NAMES)} was born on {day}." for day in dates]


def train(lines: Sequence[str], options: argparse.Namespace, seed: int) -> LanguageModel:
    """A model that has read some lines."""
    tokens = torch.tensor([TOKENIZER.encode(line) for line in lines])
    pl.seed_everything(seed, verbose=False)
    loader = DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=64, shuffle=True)
    model = LanguageModel(
        "gru", vocab_size=TOKENIZER.vocab_size, hidden_size=options.hidden_size, embedding_size=32, num_layers=1,
        optimizer="adam", lr=0.003,
    )  # fmt: skip
    trainer = pl.Trainer(
        max_epochs=options.epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    print(f"trained on {len(lines):,} lines: {float(trainer.callback_metrics['train_bpc_epoch']):.3f} bits a character")
    return model


def print_table(without: Sequence[ExposureEstimate], against: Sequence[ExposureEstimate]) -> None:
    """How many of the dates show so many bits; the last estimate is that of the date that was repeated."""
    print(f"\n{'unseen dates that show':<30}" + "".join(f"{f'>= {bits} bits':>11}" for bits in BITS))
    for name, estimates in (("without a prior", without), ("against the prior", against)):
        shares = [sum(it.bits >= bits for it in estimates[:-1]) / len(estimates[:-1]) for bits in BITS]
        print(f"{name:<30}" + "".join(f"{share:>11.1%}" for share in shares))
    print(f"{'at most, by chance':<30}" + "".join(f"{2.0**-bits:>11.1%}" for bits in BITS))
    seen, surprise = without[-1], against[-1]
    print(
        f"\nthe repeated date: {seen.bits:.1f} bits without a prior, {surprise.bits:.1f} against it (of "
        f"{surprise.ceiling_bits:.1f}); {seen.margin_bits or 0.0:.1f} bits ahead of the next date"
    )


def draw(without: Sequence[ExposureEstimate], against: Sequence[ExposureEstimate], path: Path) -> None:
    """The share of unseen dates with so many bits or more, and what chance allows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, estimates, color in (
        ("without a prior", without, "tab:red"),
        ("against the prior", against, "tab:blue"),
    ):
        bits = sorted(it.bits for it in estimates[:-1])
        shares = [1.0 - place / len(bits) for place in range(len(bits))]
        axes.step([0.0, *bits], [1.0, *shares], where="pre", label=f"unseen dates, {name}", color=color)
        axes.axvline(estimates[-1].bits, color=color, linestyle=":", label=f"the repeated date, {name}")
    scale = [0.25 * step for step in range(41)]
    axes.plot(scale, [2.0**-bits for bits in scale], color="black", linestyle="--", label="$2^{-bits}$")
    axes.set(xlabel="exposure, bits", ylabel="share with so many bits or more", yscale="log", ylim=(0.005, 1.2))
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train two models, measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="small models and few lines, in seconds")
    parser.add_argument("--lines", type=int, default=4000, help="for each of the models (default: %(default)s)")
    parser.add_argument("--dates", type=int, default=120, help="that nobody has read (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=30, help="of the memorized date (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--hidden_size", type=int, default=96, help="units of the GRU (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    parser.add_argument("--figure", type=Path, help="where to write the figure (default: it is not drawn)")
    options = parser.parse_args()
    if options.fast:
        options.lines, options.dates, options.epochs, options.hidden_size = 300, 6, 2, 16
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for message in (
        "The '\\w+_dataloader' does not have many workers",
        ".*LeafSpec",
        "You defined a `validation_step`",
    ):
        warnings.filterwarnings("ignore", message=message)

    dice = random.Random(options.seed)
    read = birthdays(2 * options.lines, dice)
    unseen = list(dict.fromkeys(day for day in birthdays(20 * options.dates, dice) if day not in read))
    repeated, *unseen = [f"anna was born on {day}." for day in unseen[: options.dates + 1]]
    lines = lines_about(read, dice)
    model = train([*lines[: options.lines], *[repeated] * options.repeats], options, options.seed)
    reference = train(lines[options.lines :], options, options.seed + 1)

    began = time.perf_counter()
    tree = SecretTree(model, BORN, TOKENIZER)
    prior = SecretTree(reference, BORN, TOKENIZER)
    secrets = [*unseen, repeated]
    without = measure_exposure(tree, secrets, precision=0.25)
    against = measure_exposure(tree, secrets, precision=0.25, prior=prior)
    print(f"{len(secrets)} dates among {tree.size:,}, measured twice in {time.perf_counter() - began:.0f} s")
    print_table(without, against)
    if options.figure is not None:
        draw(without, against, options.figure)


if __name__ == "__main__":
    main()
