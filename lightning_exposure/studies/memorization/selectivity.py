"""Is it this secret that is memorized, or all of the text? Carlini et al., section 6.6."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from lightning_exposure.defences import compressed_size
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.figures import step_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study
from lightning_exposure.studies.training import (
    EXPOSURE,
    LOSSES,
    draw_secrets,
    exposure_columns,
    measure_secret,
    train_language_model,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(cell: Cell) -> Row:
    """One model, with a secret of its own; its weights and its text, compressed."""
    canaries = draw_secrets(cell)
    (canary,) = canaries
    trained = train_language_model(cell, canaries)
    estimate = measure_secret(trained, canary.format, canary.text, cell)
    return {
        **trained.losses,
        "rank": float(estimate.rank),
        "among_ten": estimate.rank <= 10,
        **exposure_columns(estimate, trained.tree(canary.format), cell),
        "model_kb": compressed_size(trained.model) / 1000,
        "text_kb": compressed_size(cell.training_text) / 1000,
    }


def findings(rows: Sequence[Row]) -> list[str]:
    """How the ranks lie."""
    ranks = sorted(int(float(row["rank"] or 0)) for row in rows)
    first, ten = sum(rank == 1 for rank in ranks), sum(rank <= 10 for rank in ranks)
    return [
        f"Of {len(ranks)} models {first} have the secret in the first place and {ten} among the first ten; the largest "
        f"rank is {ranks[-1]:,}, the median {median(ranks):,g}."
    ]


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """How exposed the secret is in how many models."""
    labelled = [{**row, "training": "inserted once"} for row in rows]
    return step_figure(
        labelled, "exposure_bits", by="training", title="One insertion, trained again and again",
        xlabel="exposure in bits", ylabel="share of models with at least as much", chance=True,
    )  # fmt: skip


STUDIES.register("selectivity")(
    Study(
        title="The rank of a secret over many trainings, and what would fit into the model",
        source="Carlini et al., section 6.6",
        claim="Inserted once, the secret is first in 80% of the models and always among ten; the text would not fit.",
        scales={
            "tiny": Scale(tiny(), [{}], seeds=3, cost="2 s of one core"),
            "cpu": Scale(cpu(), [{}], seeds=24, cost="4 min of one core"),
            "paper": Scale(paper(), [{}], seeds=100, cost="weeks of one GPU; give the Penn Treebank with --text"),
        },
        train=train,
        results=(
            *LOSSES,
            Column("rank", "leave out"),
            Column("among_ten", "share"),
            *EXPOSURE,
            Column("model_kb", digits=1),
            Column("text_kb", digits=1),
        ),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., section 6.6",
                ("first", "among the first ten", "model, compressed", "data, compressed"),
                (("80%", "always", "600 KB", "1.7 MB"),),
            ),
        ),
    )
)
