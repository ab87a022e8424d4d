"""Does what helps against overfitting help against memorization? Carlini et al., section 8.1 and Appendix D."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning_exposure.defences import compressed_size, quantize
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.comparing import paired, sentences
from lightning_exposure.studies.figures import bar_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, product
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

TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight decay 1e-5": {"weight_decay": 1e-5},
    "weight decay 1e-4": {"weight_decay": 1e-4},
    **{f"dropout {percent}%": {"dropout": percent / 100} for percent in range(10, 100, 10)},
}
_FEW = ["plain", "weight decay 1e-5", "weight decay 1e-4", "dropout 10%", "dropout 20%", "dropout 50%"]


def train(cell: Cell) -> list[Row]:
    """One training; measured at its end, where its test loss was smallest, and with few values for its weights."""
    canaries = draw_secrets(cell)
    (canary,) = canaries
    best: list[StudyModel] = []

    def keep_best(trained: StudyModel) -> None:
        if not best or trained.test_loss < best[-1].test_loss:
            best[:] = [replace(trained, model=copy.deepcopy(trained.model))]

    last = train_language_model(cell, canaries, model=TRAININGS[cell.settings["training"]], after_epoch=keep_best)
    early = best[0]
    early.model.eval()
    measured = {"last epoch": last, "early stopping": early}
    for levels in cell.settings["levels"]:
        few = quantize(last.model, levels)
        measured[f"{levels} values"] = replace(last, model=few, test_loss=last.validated(few))
    return [
        {
            "after": after,
            "epoch": model.epoch,
            **model.losses,
            **exposure_row(model, canary.format, canary.text, cell),
            "model_kb": compressed_size(model.model) / 1000,
            "text_kb": compressed_size(cell.training_text) / 1000,
        }
        for after, model in measured.items()
    ]


def findings(rows: Sequence[Row]) -> list[str]:
    """Each defence against nothing: of the trainings at their end, of the others in the plain training."""
    trainings, after = (list(dict.fromkeys(row[name] for row in rows)) for name in ("training", "after"))
    plain: Row = {"training": "plain", "after": "last epoch"}
    others = [
        *({"training": training, "after": "last epoch"} for training in trainings if training != "plain"),
        *({"training": "plain", "after": way} for way in after if way != "last epoch"),
    ]
    return sentences(
        paired(
            f"{other['training'] if other['training'] != 'plain' else other['after']} instead of nothing",
            rows,
            "exposure_bits",
            other,
            plain,
        )
        for other in others
    )


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Exposure with each of them."""
    return bar_figure(
        summary, ("training", "after"), "exposure_bits", title="Exposure with what helps against overfitting",
        xlabel="exposure in bits",
    )  # fmt: skip


STUDIES.register("regularization")(
    Study(
        title="Weight decay, dropout, early stopping and quantization",
        source="Carlini et al., section 8.1 and Appendix D",
        claim="None of them keeps the secret from being memorized; quantized to 256 values it can still be extracted.",
        scales={
            "tiny": Scale(
                tiny(levels=[16]), product(training=["plain", "dropout 50%"]), seeds=1, cost="4 s of one core"
            ),
            "cpu": Scale(
                cpu(levels=[256, 16], characters=25_000, epochs=20),
                product(training=_FEW),
                seeds=6,
                cost="3 min of one core",
            ),
            "paper": Scale(
                paper(levels=[256], characters=250_000, epochs=40, model={"lr": 0.01}),
                product(training=list(TRAININGS)),
                seeds=10,
                cost="hours of one GPU; give the Penn Treebank with --text (the first 5% of it are used)",
            ),
        },
        train=train,
        keys=("after",),
        results=(
            Column("epoch", digits=1),
            *LOSSES,
            *EXPOSURE,
            Column("model_kb", digits=1),
            Column("text_kb", "leave out"),
        ),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Appendix D (on 5% of the data)",
                ("defence", "what is reported"),
                (
                    ("L2 weight decay", "less overfitting, no effect on memorization"),
                    ("dropout 0 to 90%", "0 to 20% have equal accuracy, and no significant effect"),
                    ("early stopping", "does not help: memorization comes first"),
                    (
                        "quantization to 256 values",
                        "loss 1.18 to 1.19; the secret is still extractable",
                    ),
                ),
            ),
        ),
    )
)
