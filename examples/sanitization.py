"""Sanitization by log-perplexity difference: how often does it find a secret, and what is left after training again?

A text gets four secrets: a number behind the words that a template expects, one that is written differently, one
spelled in words, and one that stands in three places. The text is divided in two many times over; each time two models
are trained, and every line is ranked by how much more it costs where it was held out than where it was seen. Then a
model is trained on what remains, and beside it one on what removal by template leaves.
"""

from __future__ import annotations

import argparse
import csv
import logging
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import starmap
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightning_exposure import SecretFormat, SecretTree, measure_exposure
from lightning_exposure.data.corpora import python_topics
from lightning_exposure.defences import ReferenceTraining, Sanitization, sanitize
from lightning_exposure.exposure.intervals import proportion_interval

TEMPLATE = re.compile(r"my ssn is \d{3}-\d{2}-\d{4}")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SHARES = (0.01, 0.05, 0.1)
COLUMNS = ("secret", "grouping", "per", "partitions", "share", "found", "recall", "low", "high")
RETRAINED = ("trained on", "lines", "loss in bits per character", "secret", "exposure in bits", "low", "high")
MEASURED = SecretFormat("my ssn is ###-##-####", name="ssn")


def make_secrets(seed: int) -> dict[str, list[str]]:
    """The lines that are put into the text, by what they are."""
    dice = random.Random(seed)

    def digits(count: int) -> str:
        return "".join(dice.choice("0123456789") for _ in range(count))

    copied = f"4{digits(2)}-{digits(2)}-{digits(4)}"
    return {
        "fits the template": [f"my ssn is 2{digits(2)}-{digits(2)}-{digits(4)}"],
        "written differently": [f"ssn: 3{digits(2)} {digits(2)} {digits(4)}"],
        "spelled in words": [f"social security: {' '.join(dice.choice(WORDS) for _ in range(9))}"],
        "in three places": [
            f"my ssn is {copied}",
            f"Please use {copied} for the form, he said.",
            f"Her number ({copied}) was sent twice.",
        ],
    }


def make_lines(characters: int, secrets: Mapping[str, Sequence[str]], seed: int) -> tuple[list[str], list[str]]:
    """Lines to train on, with the secrets among them, and as many others to see what was learnt of the language."""
    text = python_topics()
    halves = (text[:characters], text[characters : 2 * characters])
    train, other = ([line for line in half.split("\n") if line.strip()] for half in halves)
    dice = random.Random(seed)
    for secret in (line for group in secrets.values() for line in group):
        train.insert(dice.randrange(len(train) + 1), secret)
    return train, other


def places(result: Sanitization, lines: Sequence[str], secrets: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The place of each secret; of several copies, that of the last one to be found."""
    return {name: max(int(result.places[lines.index(line)]) for line in group) for name, group in secrets.items()}


def recall_rows(name: str, found: Sequence[int], count: int, grouping: str, per: str) -> list[tuple[Any, ...]]:
    """How often a secret is among the first 1, 5 and 10 percent, with an exact interval."""
    rows = []
    for share in SHARES:
        hits = sum(place <= share * count for place in found)
        low, high = proportion_interval(hits, len(found), 0.95)
        rows.append(
            (name, grouping, per, len(found), share, hits, round(hits / len(found), 3), round(low, 3), round(high, 3))
        )
    return rows


def divided(lines: list[str], train: ReferenceTraining, partition: int, grouping: bool) -> Sanitization:
    """One partition: two models, and what they say of every line."""
    quiet()
    return sanitize(lines, replace(train, seed=partition), group=grouping, seed=partition)


def partitions(
    lines: list[str], secrets: Mapping[str, Sequence[str]], options: argparse.Namespace, train: ReferenceTraining
) -> tuple[list[tuple[Any, ...]], list[Sanitization]]:
    """Divide, train and rank many times over, with copies kept together and without."""
    rows: list[tuple[Any, ...]] = []
    kept: dict[bool, list[Sanitization]] = {}
    for grouping in (True, False):
        found: dict[tuple[str, str], list[int]] = {}
        many = range(options.partitions)
        results = in_parallel(options.workers, divided, [(lines, train, number, grouping) for number in many])
        for partition, result in enumerate(results):
            kept.setdefault(grouping, []).append(result)
            for per in ("symbol", "sample"):
                for name, place in places(replace(result, per=per), lines, secrets).items():
                    found.setdefault((name, per), []).append(place)
            seen = ", ".join(f"{name} {found[name, 'symbol'][-1]}" for name in secrets)
            how = "with" if grouping else "without"
            print(f"partition {partition} ({how} grouping): places {seen} of {len(lines)}", flush=True)
        for (name, per), list_of_places in found.items():
            rows += recall_rows(name, list_of_places, len(lines), "yes" if grouping else "no", per)
    return rows, kept[True]


def in_parallel(workers: int, work: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """Results in order, from processes of their own if there is more than one."""
    if workers == 1:
        yield from starmap(work, arguments)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(work, *zip(*arguments, strict=True))


def quiet() -> None:
    """One thread, and nothing of what the libraries below say."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def retrained_rows(
    name: str, lines: list[str], other: list[str], measured: Mapping[str, str], train: ReferenceTraining
) -> list[tuple[Any, ...]]:
    """What a model that was trained on some lines knows of the language, and of some secrets."""
    quiet()
    scorer = train(lines)
    loss = scorer(other).sum() / sum(map(len, other))
    tree = SecretTree(scorer.model, MEASURED, scorer.tokenizer)
    estimates = measure_exposure(tree, list(measured.values()), budget=20_000, samples=1024)
    rows: list[tuple[Any, ...]] = []
    for secret, estimate in zip(measured, estimates, strict=True):
        bits = (round(value, 1) for value in (estimate.bits, estimate.low, estimate.high))
        rows.append((name, len(lines), round(float(loss), 3), secret, *bits))
    return rows


def before_and_after(
    lines: list[str], other: list[str], secrets: Mapping[str, Sequence[str]], kept: Sequence[Sanitization],
    train: ReferenceTraining, workers: int,
) -> list[tuple[Any, ...]]:  # fmt: skip
    """Loss and exposure with everything, without the top tenth of a few partitions, and without the template."""
    measured = {name: secrets[name][0] for name in ("fits the template", "in three places")}
    cleaned = {"everything": lines, "without the template": [line for line in lines if not TEMPLATE.search(line)]}
    for partition, result in enumerate(kept):
        cleaned[f"without the top 10%, partition {partition}"] = list(result.clean(0.1))
    rows = []
    trained = in_parallel(
        workers, retrained_rows, [(name, left, other, measured, train) for name, left in cleaned.items()]
    )
    for row in (row for found in trained for row in found):
        rows.append(row)
        print("; ".join(f"{column} {cell}" for column, cell in zip(RETRAINED, row, strict=True)), flush=True)
    return rows


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table as a file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def draw(rows: Sequence[tuple[Any, ...]], path: Path) -> None:
    """Recall among the first 1, 5 and 10 percent, with intervals."""
    from lightning_exposure.report.figures.style import dress, legend, line_style, new_figure, save, theme_named

    theme = theme_named("light")
    figure = new_figure(theme, 7.0, 3.6)
    axes = figure.add_subplot()
    chosen = [row for row in rows if row[2] == "symbol" and (row[1] == "yes" or row[0] == "in three places")]
    series = list(dict.fromkeys((row[0], row[1]) for row in chosen))
    for place, (name, grouping) in enumerate(series):
        own = [row for row in chosen if row[:2] == (name, grouping)]
        style = line_style(theme, place)
        at = np.arange(len(own)) + (place - (len(series) - 1) / 2) * 0.12
        recall = np.array([row[6] for row in own])
        spread = np.abs(np.array([[row[7], row[8]] for row in own]).T - recall)
        label = f"{name}{'' if grouping == 'yes' else ', copies not kept together'}"
        axes.errorbar(at, recall, spread, fmt=style.mark, color=style.color, label=label, capsize=2, markersize=5)
    axes.set_xticks(range(len(SHARES)), [f"top {share:.0%}" for share in SHARES])
    axes.set_ylim(-0.04, 1.04)
    dress(axes, theme, title="How often the secret is found", ylabel="recall, 95% interval")
    legend(axes, theme, loc="center left", bbox_to_anchor=(1.01, 0.5))
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--characters", type=int, default=25_000, help="how much text is read")
    parser.add_argument("--partitions", type=int, default=20, help="how often it is divided in two")
    parser.add_argument("--retrain", type=int, default=5, help="after how many of them a model is trained again")
    parser.add_argument("--workers", type=int, default=1, help="how many processes train")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--hidden_size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("sanitization"), help="directory of the tables and the figure")
    options = parser.parse_args(arguments)
    quiet()
    secrets = make_secrets(options.seed)
    lines, other = make_lines(options.characters, secrets, options.seed)
    model = {"hidden_size": options.hidden_size, "num_layers": 1, "embedding_size": 32, "lr": 0.005}
    train = ReferenceTraining(model, epochs=options.epochs, accelerator="cpu").on([*lines, *other, "0123456789-"])
    rows, kept = partitions(lines, secrets, options, train)
    for name, group in secrets.items():
        hits = all(TEMPLATE.search(line) for line in group)
        rows.append((name, "", "template", 1, "", int(hits), float(hits), "", ""))
    options.out.mkdir(parents=True, exist_ok=True)
    write_csv(options.out / "recall.csv", COLUMNS, rows)
    draw(rows, options.out / "recall.png")
    write_csv(
        options.out / "retrained.csv",
        RETRAINED,
        before_and_after(lines, other, secrets, kept[: options.retrain], train, options.workers),
    )


if __name__ == "__main__":
    main()
