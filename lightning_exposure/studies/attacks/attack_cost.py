"""What does it cost to pull a secret out? Carlini et al., section 7.1 and Figure 5."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from lightning_exposure.extraction import AttackName, extract
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.comparing import correlated, sentences
from lightning_exposure.studies.figures import scatter_figure, to_float
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, Value
from lightning_exposure.studies.training import (
    EXPOSURE,
    StudyModel,
    draw_secrets,
    exposure_columns,
    measure_secret,
    train_language_model,
)
from lightning_exposure.tree import SecretTree
from lightning_exposure.walks import score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTACKS: tuple[AttackName, ...] = ("brute_force", "shortest_path", "beam", "sampling")
_WIDTHS = (1, 10, 100, 1000, 10_000)


def train(cell: Cell) -> list[Row]:
    """One model, attacked in several epochs with each of the attacks."""
    canaries = draw_secrets(cell)
    (canary,) = canaries
    rows: list[Row] = []

    def attack(trained: StudyModel) -> None:
        if trained.epoch not in cell.settings["looks"]:
            return
        tree = trained.tree(canary.format)
        estimate = measure_secret(trained, canary.format, canary.text, cell)
        shared = {"test_loss": trained.test_loss, **exposure_columns(estimate, tree, cell)}
        for name in ATTACKS:
            place: dict[str, Value] = {"epoch": trained.epoch, "attack": name}
            cost = _cost(tree, canary.text, name, math.ceil(estimate.rank), cell.settings["attack_budget"])
            rows.append({**place, **shared, **cost})

    train_language_model(cell, canaries, after_epoch=attack)
    return rows


def _cost(tree: SecretTree, secret: str, name: AttackName, rank: int, budget: int) -> dict[str, Value]:
    """Whether the attack comes to the secret within its budget, and how much of the model it reads for that.

    An attack goes on until the secret is among its candidates, of which there are then as many as its rank: this is
    what it costs one who can tell the secret when he sees it, and for a secret of rank 1 what it costs anybody.

    For sampling: how many draws give the secret with a probability of 90%, from its exact probability; whether they are
    within the budget or not.
    """
    if name == "sampling":
        bits = float(score(tree, [secret]).costs[0])
        draws = math.log(0.1) / math.log1p(-(2.0**-bits)) if bits > 0 else 1.0
        return {"found": draws <= budget, "queries": draws}
    if name == "beam":
        read = 0
        for width in _WIDTHS:
            found = extract(tree, "beam", width=width, top_k=width)
            read += found.expansions
            if any(candidate.text == secret for candidate in found.candidates):
                return {"found": True, "queries": float(read)}
        return {"found": False, "queries": None}
    found = extract(tree, name, top_k=rank, budget=budget)
    hit = any(candidate.text == secret for candidate in found.candidates) and found.optimal
    return {"found": hit, "queries": float(found.expansions) if hit else None}


def findings(rows: Sequence[Row]) -> list[str]:
    """For each attack what success cost."""
    said = []
    for name in ATTACKS:
        chosen = [row for row in rows if row["attack"] == name and row["first"]]
        spent = [to_float(row["queries"]) for row in chosen if row["queries"] is not None]
        if spent:
            middle = median(spent)
            unit = "draws for a chance of 90%" if name == "sampling" else "expansions"
            said.append(
                f"{name}: where the secret is first, {middle:,.0f} {unit} (median; {len(spent)} of {len(chosen)})."
            )
    found = [row for row in rows if row["attack"] == "shortest_path" and row["queries"] is not None]
    return said + sentences(
        [correlated("Expansions of the shortest path against exposure", found, "exposure_bits", "queries")]
    )


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """What success costs, against exposure."""
    return scatter_figure(
        [row for row in rows if row["queries"] is not None], "exposure_bits", "queries", by="attack", log=True,
        title="What it costs until the secret comes out", xlabel="exposure in bits",
        ylabel="expansions (sampling: draws)",
    )  # fmt: skip


STUDIES.register("attack-cost")(
    Study(
        title="What four attacks cost, against the exposure of the secret",
        source="Carlini et al., section 7.1 and Figure 5",
        claim="Sampling needs about 10^7 queries for a 90% chance, shortest path about 10^5 at exposures above 30.",
        scales={
            "tiny": Scale(tiny(looks=[1, 2], epochs=2, attack_budget=2_000), [{}], seeds=1, cost="3 s of one core"),
            "cpu": Scale(
                cpu(looks=[2, 4, 6, 8, 10, 12, 15], epochs=15, attack_budget=200_000),
                [{}],
                seeds=5,
                cost="1.5 min of one core",
            ),
            "paper": Scale(
                paper(looks=[1, 2, 5, 10, 20, 40], epochs=40, attack_budget=10_000_000),
                [{}],
                seeds=10,
                cost="days of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        keys=("epoch", "attack"),
        results=(
            Column("test_loss", digits=3),
            *EXPOSURE,
            Column("found", "share"),
            Column("queries", "median", digits=0),
        ),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., section 7.1 and Figure 5",
                ("attack", "cost"),
                (
                    ("sampling", "about 10^7 queries for a 90% chance"),
                    ("shortest path", "about 10^5 expansions where exposure is above 30"),
                ),
            ),
        ),
    )
)
