"""Is anything memorized at all, after one epoch? A test of hypotheses. Carlini et al., section 4.1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scipy import stats

from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.studies.figures import step_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, product
from lightning_exposure.studies.training import EXPOSURE, LOSSES, exposure_row, train_language_model
from lightning_exposure.walks import score

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(cell: Cell) -> Row:
    """One model, one epoch: two secrets are drawn, and the first is inserted, or not."""
    secret_format = SecretFormat(cell.settings["format"])
    canaries = CanarySet.draw(secret_format, repetitions=[cell.settings["insertions"], 0], seed=cell.secret_seed)
    trained = train_language_model(cell, canaries)
    secret, other = canaries.texts
    costs = score(trained.tree(secret_format), [secret, other]).costs
    return {
        **trained.losses,
        "likelier": bool(costs[0] < costs[1]),
        **exposure_row(trained, secret_format, secret, cell),
    }


def findings(rows: Sequence[Row]) -> list[str]:
    """The exact binomial test, and what the exact ranks add to it."""
    said = []
    for insertions in dict.fromkeys(row["insertions"] for row in rows):
        chosen = [row for row in rows if row["insertions"] == insertions]
        hits = sum(bool(row["likelier"]) for row in chosen)
        p = float(stats.binomtest(hits, len(chosen), 0.5, alternative="greater").pvalue)
        # Under the null hypothesis an exact rank is uniform: 2^-exposure is a p-value of its own.
        chances = [2.0 ** -float(row["exposure_bits"] or 0.0) for row in chosen]
        combined = float(stats.combine_pvalues(chances, method="fisher").pvalue)
        said.append(
            f"Inserted {insertions} times: the secret is likelier than the other one in {hits} of {len(chosen)} models "
            f"(exact one-sided binomial p = {p:.2g}); the exact ranks of all models together, by Fisher's method, "
            f"p = {combined:.2g}."
        )
    return said + _against_control(rows)


def _against_control(rows: Sequence[Row]) -> list[str]:
    """Of each seed the same number, in the model that has read it and in the one that has not."""
    bits = {(row["insertions"], row["seed"]): float(row["exposure_bits"] or 0.0) for row in rows}
    pairs = [(bits[1, seed], bits[0, seed]) for count, seed in bits if count == 1 and (0, seed) in bits]
    if not pairs:
        return []
    hits = sum(inserted > control for inserted, control in pairs)
    p = float(stats.binomtest(hits, len(pairs), 0.5, alternative="greater").pvalue)
    return [
        f"The same number is more exposed in the model that has read it than in the one that has not in {hits} of "
        f"{len(pairs)} pairs (exact one-sided binomial p = {p:.2g})."
    ]


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """How exposed the secrets are, with and without insertion, against chance."""
    named = [{**row, "text": "inserted once" if row["insertions"] else "not inserted"} for row in rows]
    return step_figure(
        named, "exposure_bits", by="text", title="Exposure after one epoch", xlabel="exposure in bits",
        ylabel="share of models with at least as much", chance=True,
    )  # fmt: skip


_SMALL = {"architecture": "lstm", "num_layers": 1, "embedding_size": 16}

STUDIES.register("hypothesis")(
    Study(
        title="Memorization as a test of hypotheses: many models of one epoch",
        source="Carlini et al., section 4.1",
        claim="After one epoch the inserted secret is likelier than another one in 88 of 100 models.",
        scales={
            "tiny": Scale(
                {
                    "characters": 3_000,
                    "epochs": 1,
                    "format": "the random number is ###",
                    "references": 32,
                    "model": {**_SMALL, "hidden_size": 8, "lr": 0.01},
                    "data": {"window": 32, "batch_size": 16, "whole_canaries": True},
                },
                product(insertions=[1, 0]),
                seeds=2,
                cost="2 s of one core",
            ),
            "cpu": Scale(
                {
                    "characters": 100_000,
                    "epochs": 1,
                    "format": "the random number is ####",
                    "references": 200,
                    "model": {**_SMALL, "hidden_size": 64, "lr": 0.01},
                    "data": {"window": 64, "batch_size": 4, "whole_canaries": True},
                },
                product(insertions=[1, 0]),
                seeds=100,
                cost="5 min of one core",
            ),
            "paper": Scale(
                {
                    "characters": 5_000_000,
                    "epochs": 1,
                    "format": "The random number is #########",
                    "budget": 1_000_000,
                    "model": {"architecture": "lstm", "num_layers": 2, "hidden_size": 200, "lr": 0.001},
                    "data": {"window": 20, "batch_size": 128},
                    "trainer": {"accelerator": "auto"},
                },
                product(insertions=[1, 0]),
                seeds=100,
                cost="hours of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        results=(*LOSSES, Column("likelier", "share"), *EXPOSURE),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., section 4.1 (the paper says p < 1e-30; the exact one-sided binomial is 9.6e-16)",
                ("models", "inserted secret likelier than another", "exact binomial p"),
                (("100", "88", "9.6e-16"),),
            ),
        ),
    )
)
