"""What does a model say by itself of the secrets it has read? Wang, "Privacy Leakage in LSTM"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_exposure.defences import ReferenceTraining, TextScorer
from lightning_exposure.exposure import measure_exposure
from lightning_exposure.leakage.grid import leakage_cell, planted_secrets, secret_classes
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.studies.figures import line_figure, to_float
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, Value, product
from lightning_exposure.studies.training import EXPOSURE, exposure_columns
from lightning_exposure.tree import SecretTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(cell: Cell) -> list[Row]:
    """One model on a text with secrets of three classes; it is left to write, and then asked for each of them."""
    settings = cell.settings
    reference: dict[str, Any] = {"accelerator": "cpu", **settings["reference"]}
    training = ReferenceTraining(seed=cell.random_seed, **reference)
    made: list[TextScorer] = []

    def fit(text: str) -> tuple[Any, Any]:
        covering = [line for kind in secret_classes() for line in kind.format.covering()]
        made.append(training.on([text, *covering])(text.splitlines()))
        return made[0].model, made[0].tokenizer

    planted = {"rate": settings["rate"], "cardinality": settings["cardinality"], "seed": cell.secret_seed}
    rows = leakage_cell(
        cell.training_text, fit, samples=settings["samples"], length=settings["length"], width=settings["width"],
        **planted,
    )  # fmt: skip
    secrets = planted_secrets(cell.training_text, **planted).by_format()
    return [
        {
            "kind": row.kind,
            "copies": row.copies,
            "leaked": row.leaked / row.cardinality,
            "leaky_samples": row.leaky_samples / row.samples,
            "targeted": row.targeted / row.cardinality,
            **_exposed(made[0], kind.format, secrets[kind.format][0].text, cell),
        }
        for row, kind in zip(rows, secret_classes(), strict=True)
    ]


def _exposed(scorer: TextScorer, format: SecretFormat, secret: str, cell: Cell) -> dict[str, Value]:
    """The exposure of one secret of a class; where there are too many to count them, it is estimated without bias."""
    tree = SecretTree(scorer.model, format, scorer.tokenizer)
    (estimate,) = measure_exposure(tree, [secret], budget=cell.settings["budget"], seed=cell.random_seed)
    return exposure_columns(estimate, tree, cell)


def findings(rows: Sequence[Row]) -> list[str]:
    """What the two attacks find of the same secrets."""
    trainings: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        trainings.setdefault((row["rate"], row["cardinality"], row["seed"]), []).append(row)
    found = {
        name: [sum(to_float(row[name]) * to_float(row["cardinality"]) for row in one) for one in trainings.values()]
        for name in ("leaked", "targeted")
    }
    planted = sum(to_float(row["cardinality"]) for row in rows)
    pairs = list(zip(found["targeted"], found["leaked"], strict=True))
    more, fewer = (sum(sign * (one - other) > 0 for one, other in pairs) for sign in (1, -1))
    return [
        f"Of {planted:.0f} secrets in {len(trainings)} trainings the targeted attack finds "
        f"{sum(found['targeted']):.0f} and sampling {sum(found['leaked']):.0f}; the targeted one finds more in {more} "
        f"trainings and fewer in {fewer}."
    ]


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """The share of secrets that the targeted attack finds, a line for each class and cardinality."""
    named = [{**row, "secrets": f"{row['cardinality']} x {row['kind']}"} for row in summary]
    return line_figure(
        named, "rate", "targeted", by="secrets", title="Secrets that are found from how they begin",
        xlabel="lines of secrets for each line of text", ylabel="share of the secrets", log=True,
    )  # fmt: skip


def _reference(units: int, layers: int, epochs: int, lr: float, **more: Any) -> dict[str, Any]:
    model = {"num_layers": layers, "embedding_size": 16, "lr": lr, "hidden_size": units}
    return {"epochs": epochs, "model": model, **more}


STUDIES.register("leakage")(
    Study(
        title="What is leaked, by insertion rate, number and class of the secrets",
        source="Wang, Privacy Leakage in LSTM",
        claim="Sampled text gives secrets away, the more the oftener they were inserted; knowing how one begins helps.",
        scales={
            "tiny": Scale(
                {
                    "characters": 3_000,
                    "samples": 8,
                    "length": 40,
                    "width": 5,
                    "budget": 2_000,
                    "references": 32,
                    "reference": _reference(8, 1, 1, 0.01),
                },
                product(rate=[0.1], cardinality=[1, 2]),
                seeds=1,
                cost="4 s of one core",
            ),
            "cpu": Scale(
                {
                    "characters": 100_000,
                    "samples": 200,
                    "length": 150,
                    "width": 20,
                    "budget": 50_000,
                    "references": 300,
                    "reference": _reference(64, 1, 12, 0.01),
                },
                product(rate=[0.0015, 0.005, 0.015, 0.05], cardinality=[1, 4]),
                seeds=3,
                cost="7 min of one core",
            ),
            "paper": Scale(
                {
                    "characters": 5_000_000,
                    "samples": 10_000,
                    "length": 200,
                    "width": 100,
                    "budget": 1_000_000,
                    "references": 10_000,
                    "reference": _reference(512, 3, 50, 0.001, window=50, batch_size=10, clip=5.0, accelerator="auto"),
                },
                product(rate=[0.001, 0.01, 0.1], cardinality=[1, 10, 100]),
                seeds=3,
                cost="days of one GPU; give a text of your own with --text",
            ),
        },
        train=train,
        keys=("kind",),
        results=(
            Column("copies", digits=1),
            Column("leaked", "share", share_of="cardinality"),
            Column("leaky_samples", digits=3, least=0, most=1),
            Column("targeted", "share", share_of="cardinality"),
            *EXPOSURE,
        ),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Wang: 3 layers of 512 units, unrolled 50, batches of 10, learning rate 0.001, gradient clip 5",
                ("varied", "attack"),
                (
                    ("insertion rate, number of different secrets", "sample text, count what appears"),
                    ("class: SSN, card, address", '"SSN 123", "CCN 0000", "Mr.Harry": the rest is asked for'),
                ),
            ),
        ),
    )
)
