"""How many secrets can a model hold? Carlini et al., Table 4."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.figures import line_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, product
from lightning_exposure.studies.training import (
    LOSSES,
    draw_secrets,
    measure_secret,
    skew_normal_bits,
    train_language_model,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def prefixes(count: int, seed: int) -> list[str]:
    """Four letters each, all different: what a secret stands behind.

    >>> len(set(prefixes(500, seed=0)))
    500
    """
    numbers, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found["".join(numbers.choices(string.ascii_lowercase, k=4))] = None
    return list(found)


def train(cell: Cell) -> Row:
    """One model with so many secrets, each behind a prefix of its own, each inserted so many times."""
    settings = cell.settings
    names = prefixes(settings["secrets"], cell.secret_seed)
    patterns = [settings["format"].replace("NAME", name) for name in names]
    canaries = draw_secrets(cell, *patterns, repetitions=settings["insertions"])
    trained = train_language_model(cell, canaries)
    asked = list(canaries)[: settings["asked"]]
    found = [measure_secret(trained, canary.format, canary.text, cell) for canary in asked]
    margins = [estimate.margin_bits for estimate in found if estimate.margin_bits is not None]
    estimates = [skew_normal_bits(trained.tree(canary.format), canary.text, cell) for canary in asked[:8]]
    known = [bits for bits in estimates if bits is not None]
    return {
        **trained.losses,
        "asked": len(found),
        "extracted": mean(estimate.rank == 1 for estimate in found),
        "exposure_bits": mean(estimate.bits for estimate in found),
        "size_bits": found[0].size_bits,
        "margin_bits": mean(margins) if margins else None,
        "skewnormal_bits": mean(known) if known else None,
    }


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """The share that can be extracted, a line for each number of insertions."""
    return line_figure(
        summary, "secrets", "extracted", by="insertions", title="Secrets that can be extracted",
        xlabel="different secrets in the text", ylabel="share that is the likeliest of its kind", log=True,
    )  # fmt: skip


_FORMAT = "the number of NAME is "

STUDIES.register("many-secrets")(
    Study(
        title="The share of secrets that can be extracted, by their number and insertions",
        source="Carlini et al., Table 4",
        claim="One secret inserted once is extracted in most models, many hardly ever; inserted five times, all are.",
        scales={
            "tiny": Scale(
                tiny(format=_FORMAT + "##", asked=4),
                product(insertions=[1, 2], secrets=[1, 3]),
                seeds=1,
                cost="3 s of one core",
            ),
            "cpu": Scale(
                cpu(format=_FORMAT + "#####", asked=20),
                product(insertions=[1, 2, 5], secrets=[1, 5, 25]),
                seeds=6,
                cost="7 min of one core",
            ),
            "paper": Scale(
                paper(format=_FORMAT + "#########", asked=500),
                product(insertions=[1, 2, 5, 10], secrets=[1, 10, 50, 100, 500]),
                seeds=10,
                cost="days of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        results=(
            *LOSSES,
            Column("asked", "leave out"),
            Column("extracted", "share", share_of="asked"),
            Column("exposure_bits", least=0, most="size_bits"),
            Column("size_bits", "leave out"),
            Column("margin_bits", least=0),
            Column("skewnormal_bits", least=0),
        ),
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Table 4: share of phrases that are uniquely extractable, by number of secrets",
                ("insertions", "1", "10", "50", "100", "500"),
                (
                    ("1", "80%", "11%", "2%", "1%", "0.1%"),
                    ("2", "100%", "38%", "18%", "16%", "1%"),
                    ("5", "100%", "100%", "100%", "100%", "98%"),
                    ("10", "100%", "100%", "100%", "100%", "100%"),
                ),
            ),
        ),
    )
)
