"""Does it matter how a model is trained? Six optimizers, shuffling, bagging. Carlini et al., section 6.3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats
from torch.utils.data import DataLoader, RandomSampler

from lightning_exposure.data import TextDataModule
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.comparing import paired, sentences
from lightning_exposure.studies.equal_loss import at_equal_loss, equal_loss_rows
from lightning_exposure.studies.figures import bar_figure, to_float
from lightning_exposure.studies.study import STUDIES, Cell, PaperTable, Row, Scale, Study, Value, product
from lightning_exposure.studies.training import (
    EXPOSURE,
    LOSSES,
    StudyModel,
    draw_secrets,
    exposure_row,
    train_language_model,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 8.0},
    "momentum": {"optimizer": "sgd", "lr": 0.8, "momentum": 0.9},
    "rmsprop": {"optimizer": "rmsprop", "lr": 0.005},
    "adagrad": {"optimizer": "adagrad", "lr": 0.05},
    "adadelta": {"optimizer": "adadelta", "lr": 5.0},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "no shuffling": {"optimizer": "rmsprop", "lr": 0.005},
    "bagging": {"optimizer": "rmsprop", "lr": 0.005},
}


def train(cell: Cell) -> list[Row]:
    """One model, a row for each epoch: which of them is compared depends on how well the others do."""
    way = cell.settings["training"]
    canaries = draw_secrets(cell)
    (canary,) = canaries
    rows: list[Row] = []

    def measure(trained: StudyModel) -> None:
        found = exposure_row(trained, canary.format, canary.text, cell)
        rows.append({"epoch": trained.epoch, **trained.losses, **found})

    rate = {"lr": cell.settings.get("rates", {}).get(way, WAYS[way]["lr"])}
    train_language_model(
        cell, canaries, model={**WAYS[way], **rate}, data={"shuffle": way != "no shuffling"}, after_epoch=measure,
        prepare=(lambda data: draw_with_replacement(data, cell.random_seed)) if way == "bagging" else None,
    )  # fmt: skip
    return rows


def draw_with_replacement(data: TextDataModule, seed: int) -> None:
    """Let every epoch draw its windows with replacement: some come twice, and a third of them not at all."""
    given = data.train_dataloader()
    windows: Any = given.dataset
    sampler = RandomSampler(windows, replacement=True, generator=torch.Generator().manual_seed(seed))
    loader = DataLoader(windows, batch_size=given.batch_size, sampler=sampler)
    data.train_dataloader = lambda: loader  # type: ignore[method-assign]


def findings(rows: Sequence[Row]) -> list[str]:
    """Could all ways of training be the same? Asked of all of them, and of those that get further than the worst."""
    smallest: dict[Value, list[float]] = {}
    for seed in _seeds(rows):
        for way in dict.fromkeys(row["training"] for row in rows):
            losses = [to_float(row["test_loss"]) for row in rows if (row["training"], row["seed"]) == (way, seed)]
            smallest.setdefault(way, []).extend([min(losses)] if losses else [])
    worst = max(smallest, key=lambda way: float(np.mean(smallest[way])))
    said = [_compared(rows, "all ways of training the same")]
    said.append(
        _compared([row for row in rows if row["training"] != worst], f"all but {worst}, which is behind, the same")
    )
    equal = equal_loss_rows(rows, ("training",))
    ways = [
        paired(f"{way}, instead of rmsprop", equal, "exposure_bits", {"training": way}, {"training": "rmsprop"})
        for way in ("no shuffling", "bagging")
        if {way, "rmsprop"} <= set(smallest)
    ]
    return [sentence for sentence in said if sentence] + sentences(ways)


def _seeds(rows: Sequence[Row]) -> list[Value]:
    return list(dict.fromkeys(row["seed"] for row in rows))


def _compared(rows: Sequence[Row], hypothesis: str) -> str:
    """Friedman's test at the loss that all of these reach: the trainings of a seed share a secret."""
    chosen = equal_loss_rows(rows, ("training",))
    ways = list(dict.fromkeys(row["training"] for row in chosen))
    bits = {(row["training"], row["seed"]): to_float(row["exposure_bits"]) for row in chosen}
    whole = [seed for seed in _seeds(chosen) if all((way, seed) in bits for way in ways)]
    if len(ways) < 3 or len(whole) < 2 or len(set(bits.values())) < 2:
        return ""
    groups = [[bits[way, seed] for seed in whole] for way in ways]
    means = {way: float(np.mean(group)) for way, group in zip(ways, groups, strict=True)}
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    losses = [[to_float(row["test_loss"]) for row in chosen if row["seed"] == seed] for seed in whole]
    alike = not np.ptp(groups, axis=0).any()
    p = 1.0 if alike else float(stats.friedmanchisquare(*groups).pvalue)
    return (
        f"At equal test loss ({np.mean(losses):.2f} on average, at most {max(map(np.ptp, losses)):.2f} apart in one "
        f"seed): {hypothesis}, p = {p:.2g} (Friedman, {len(whole)} seeds); mean exposures from {means[least]:.1f} bits "
        f"({least}) to {means[most]:.1f} ({most})."
    )


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Exposure at equal test loss."""
    return bar_figure(
        summary, ("training",), "exposure_bits", title="Exposure at equal test loss", xlabel="exposure in bits"
    )


STUDIES.register("optimizers")(
    Study(
        title="Six optimizers, shuffling and bagging, at equal test loss",
        source="Carlini et al., section 6.3",
        claim="At equal test loss there is no significant difference between optimizers, shuffling or bagging.",
        scales={
            "tiny": Scale(
                tiny(epochs=2), product(training=["sgd", "adam", "bagging"]), seeds=1, cost="4 s of one core"
            ),
            "cpu": Scale(
                cpu(epochs=12, format="the random number is #####"),
                product(training=list(WAYS)),
                seeds=8,
                cost="10 min of one core",
            ),
            "paper": Scale(
                # Of the others the paper does not say it.
                paper(rates=dict.fromkeys(("rmsprop", "no shuffling", "bagging"), 0.001)),
                product(training=list(WAYS)),
                seeds=10,
                cost="days of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        keys=("epoch",),
        results=(*LOSSES, *EXPOSURE),
        summarize=at_equal_loss,
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., section 6.3",
                ("varied", "what is reported"),
                (
                    ("SGD, momentum, RMSProp, Adagrad, Adadelta, Adam", "no significant difference at equal test loss"),
                    ("shuffling", "no significant difference"),
                    ("bagging", "no significant difference"),
                ),
            ),
        ),
    )
)
