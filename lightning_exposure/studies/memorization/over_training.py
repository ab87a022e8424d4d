"""When does memorization begin, and when does it end? Carlini et al., Figure 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from lightning_exposure.exposure import measure_exposure
from lightning_exposure.studies.comparing import chosen, paired, sentences
from lightning_exposure.studies.figures import curves_figure, is_number, to_float
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study
from lightning_exposure.studies.training import (
    EXPOSURE,
    LOSSES,
    StudyModel,
    draw_secrets,
    exposure_row,
    train_language_model,
)
from lightning_exposure.walks import score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONSET = 10
"""Bits of exposure that nobody would take for chance."""


def train(cell: Cell) -> list[Row]:
    """One model, far beyond the minimum of its test loss; a row for each epoch that is measured."""
    canaries = draw_secrets(cell)
    (canary,) = canaries
    blanks = canary.format.pattern.count("#")
    known = canary.text[: len(canary.text) - blanks + blanks // 2]
    rows: list[Row] = []

    def measure(trained: StudyModel) -> None:
        if trained.epoch > 1 and trained.epoch % cell.settings["every"]:
            return
        tree = trained.tree(canary.format)
        (second,) = measure_exposure(tree.starting_with(known), [canary.text], seed=cell.random_seed)
        rows.append(
            {
                "epoch": trained.epoch,
                **trained.losses,
                **exposure_row(trained, canary.format, canary.text, cell),
                "cost_bits": float(score(tree, [canary.text]).costs[0]),
                "second_half_first": second.rank == 1,
            }
        )

    train_language_model(cell, canaries, after_epoch=measure)
    return rows


def findings(rows: Sequence[Row]) -> list[str]:
    """Where memorization begins, beside the minimum of the test loss; and whether it declines after its maximum."""
    trainings: dict[object, list[Row]] = {}
    for row in rows:
        trainings.setdefault(row["seed"], []).append(row)
    curves = list(trainings.values())
    onset = [_first(curve, lambda row: to_float(row["exposure_bits"]) >= ONSET) for curve in curves]
    half = [_first(curve, lambda row: bool(row["second_half_first"])) for curve in curves]
    whole = [_first(curve, lambda row: bool(row["first"])) for curve in curves]
    lowest = [int(to_float(min(curve, key=lambda row: to_float(row["test_loss"]))["epoch"])) for curve in curves]
    return [
        f"Exposure of {ONSET} bits (chance: 1 in {2**ONSET:,}) is first seen after epoch {_told(onset)}; the second "
        f"half given the first is the likeliest after epoch {_told(half)}, the whole number after epoch "
        f"{_told(whole)}; the test loss is smallest after epoch {_told(lowest)}.",
        *_decline(curves),
        *_margins(rows),
    ]


def _margins(rows: Sequence[Row]) -> list[str]:
    """What goes on where exposure has nothing left to say: from the first epoch where all are first to the last."""
    epochs = sorted({to_float(row["epoch"]) for row in rows})
    whole = [epoch for epoch in epochs if all(is_number(row["margin_bits"]) for row in chosen(rows, {"epoch": epoch}))]
    if len(whole) < 2:
        return []
    first, last = whole[0], whole[-1]
    name = f"Margin after epoch {last:g} instead of {first:g}, the first with all numbers in the first place"
    return sentences([paired(name, rows, "margin_bits", {"epoch": last}, {"epoch": first})])


def _first(curve: Sequence[Row], holds: Callable[[Row], bool]) -> int | None:
    return next((int(to_float(row["epoch"])) for row in curve if holds(row)), None)


def _told(epochs: Sequence[int | None]) -> str:
    """Of each training, in the order of the seeds."""
    return ", ".join("never" if epoch is None else str(epoch) for epoch in epochs)


def _decline(curves: Sequence[Sequence[Row]]) -> list[str]:
    """Paired tests of the last epoch against that of the largest mean; of exposure, and of what the secret costs."""
    if len(curves) < 2 or len({len(curve) for curve in curves}) > 1:
        return []
    said = []
    for name, sign in (("exposure_bits", 1.0), ("skewnormal_bits", 1.0), ("cost_bits", -1.0)):
        values = sign * np.array([[to_float(row[name]) for row in curve] for curve in curves])
        best = int(values.mean(axis=0).argmax())
        drop = values[:, best] - values[:, -1]
        if best == values.shape[1] - 1 or not drop.any():
            said.append(f"{name}: no decline; the best epoch is the last, or as good as it.")
            continue
        p = float(stats.ttest_1samp(drop, 0.0, alternative="greater").pvalue)
        epoch = curves[0][best]["epoch"]
        said.append(
            f"{name}: {drop.mean():.2f} bits worse at the last epoch than at epoch {epoch} (paired t, p = {p:.2g})."
        )
    return said


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Losses above, exposure below, and what goes on when that has nothing left to say."""
    return curves_figure(
        summary,
        "epoch",
        [
            ("nats per character", {"train_loss": "training loss", "test_loss": "test loss"}),
            ("exposure in bits", {"exposure_bits": "exact", "skewnormal_bits": "skew-normal"}),
            ("bits", {"cost_bits": "cost of the secret", "margin_bits": "margin"}),
        ],
        title="Exposure and losses, epoch by epoch",
        xlabel="epoch",
    )


_MODEL = {"architecture": "lstm", "num_layers": 1, "embedding_size": 16, "lr": 0.01}

STUDIES.register("over-training")(
    Study(
        title="Exposure and losses while a model overfits",
        source="Carlini et al., Figure 4",
        claim="Memorization begins before overfitting, is complete at the smallest test loss, and declines later.",
        scales={
            "tiny": Scale(
                {
                    "characters": 2_000,
                    "epochs": 2,
                    "every": 1,
                    "format": "the random number is ####",
                    "repetitions": 1,
                    "references": 32,
                    "model": {**_MODEL, "hidden_size": 8},
                    "data": {"window": 32, "batch_size": 16, "whole_canaries": True},
                },
                [{}],
                seeds=2,
                cost="2 s of one core",
            ),
            "cpu": Scale(
                {
                    "characters": 25_000,
                    "epochs": 40,
                    "every": 2,
                    "format": "the random number is ######",
                    "repetitions": 1,
                    "references": 500,
                    "model": {**_MODEL, "hidden_size": 64},
                    "data": {"window": 64, "batch_size": 16, "whole_canaries": True},
                },
                [{}],
                seeds=6,
                cost="1.5 min of one core",
            ),
            "paper": Scale(
                {
                    "characters": 250_000,
                    "epochs": 40,
                    "every": 1,
                    "format": "The random number is #########",
                    "repetitions": 1,
                    "budget": 1_000_000,
                    "model": {"architecture": "lstm", "num_layers": 2, "hidden_size": 200, "lr": 0.01},
                    "data": {"window": 20, "batch_size": 128},
                    "trainer": {"accelerator": "auto"},
                },
                [{}],
                seeds=10,
                cost="hours of one GPU; give the Penn Treebank with --text (the first 5% of it are used)",
            ),
        },
        train=train,
        keys=("epoch",),
        results=(*LOSSES, *EXPOSURE, Column("cost_bits", least=0), Column("second_half_first", "share")),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Figure 4 (5% of the Penn Treebank)",
                ("epoch", "what is reported"),
                (
                    ("1", "exposure 3"),
                    ("5", "the second half of the secret can be extracted by one who knows the first"),
                    ("10", "the largest exposure, rank 1 from here on; the smallest test loss"),
                    ("40", "less than at epoch 10 (p < .001)"),
                ),
            ),
        ),
    )
)
