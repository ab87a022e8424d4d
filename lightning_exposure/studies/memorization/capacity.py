"""Does a larger model memorize more, and a larger batch? Carlini et al., Table 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_exposure.studies.comparing import correlated, sentences
from lightning_exposure.studies.figures import line_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, product
from lightning_exposure.studies.training import EXPOSURE, LOSSES, draw_secrets, exposure_row, train_language_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(cell: Cell) -> Row:
    """One model: so many units, batches of that size, the same number of epochs for all."""
    canaries = draw_secrets(cell)
    units = cell.settings["units"]
    trained = train_language_model(
        cell, canaries, model={"hidden_size": units}, data={"batch_size": cell.settings["batch_size"]}
    )
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    found = exposure_row(trained, canaries[0].format, canaries[0].text, cell)
    return {"parameters": parameters, **trained.losses, **found}


def findings(rows: Sequence[Row]) -> list[str]:
    """Rank correlations over all trainings."""
    factors = {"units": "units", "batch_size": "batch size"}
    return sentences(
        correlated(f"Exposure against {name}", rows, factor, "exposure_bits") for factor, name in factors.items()
    )


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Exposure against units, a line for each batch size."""
    return line_figure(
        summary, "units", "exposure_bits", by="batch_size", title="Exposure by units and batch size",
        xlabel="units", ylabel="exposure in bits", log=True,
    )  # fmt: skip


STUDIES.register("capacity")(
    Study(
        title="Exposure by batch size and number of units",
        source="Carlini et al., Table 2",
        claim="The more units, and the larger the batches, the more exposed is the secret, at equal epochs.",
        scales={
            "tiny": Scale(
                {
                    "characters": 3_000,
                    "epochs": 1,
                    "format": "the random number is ###",
                    "repetitions": 1,
                    "references": 32,
                    "model": {"architecture": "lstm", "num_layers": 1, "embedding_size": 8, "lr": 0.01},
                    "data": {"window": 32, "whole_canaries": True},
                },
                product(batch_size=[16, 32], units=[4, 8]),
                seeds=1,
                cost="2 s of one core",
            ),
            "cpu": Scale(
                {
                    "characters": 100_000,
                    "epochs": 12,
                    "format": "the random number is ######",
                    "repetitions": 1,
                    "model": {"architecture": "lstm", "num_layers": 1, "embedding_size": 16, "lr": 0.01},
                    "data": {"window": 64, "whole_canaries": True},
                },
                product(batch_size=[8, 16, 32, 64], units=[16, 32, 64]),
                seeds=3,
                cost="4 min of one core",
            ),
            "paper": Scale(
                {
                    "characters": 5_000_000,
                    "epochs": 100,
                    "format": "The random number is #########",
                    "repetitions": 1,
                    "budget": 1_000_000,
                    "model": {"architecture": "lstm", "num_layers": 2, "lr": 0.001},
                    "plateau": {"factor": 0.5, "patience": 2},
                    "data": {"window": 20},
                    "trainer": {"accelerator": "auto"},
                },
                product(batch_size=[16, 32, 64, 128, 256, 512, 1024], units=[50, 100, 150, 200, 250]),
                seeds=10,
                cost="days of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        results=(Column("parameters", digits=0), *LOSSES, *EXPOSURE),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Table 2: exposure by batch size and units (ten models each)",
                ("batch size", "50", "100", "150", "200", "250"),
                (
                    ("16", "1.7", "4.3", "6.9", "9.0", "6.4"),
                    ("32", "4.0", "6.2", "14.4", "14.1", "14.6"),
                    ("64", "4.8", "11.7", "19.2", "18.9", "21.3"),
                    ("128", "9.9", "14.0", "25.9", "32.5", "35.4"),
                    ("256", "12.3", "21.0", "26.4", "28.8", "31.2"),
                    ("512", "14.2", "21.8", "30.8", "26.0", "26.0"),
                    ("1024", "15.7", "23.2", "26.7", "27.0", "24.4"),
                ),
            ),
        ),
    )
)
