"""Can secrets be found by how much a model learns from them alone? Carlini et al., Appendix F."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_exposure.defences import ReferenceTraining, TextScorer, sanitize
from lightning_exposure.exposure import measure_exposure
from lightning_exposure.secrets import SecretFormat
from lightning_exposure.studies.comparing import above_chance, chosen, paired, sentences
from lightning_exposure.studies.figures import bar_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, Value
from lightning_exposure.studies.training import EXPOSURE, draw_secrets, exposure_columns
from lightning_exposure.tree import SecretTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERYTHING = "everything"
CLEANED = "what is left"


def train(cell: Cell) -> list[Row]:
    """One partition: two models on half of the lines each, and then one on all lines and one on what is left."""
    settings, (canary,) = cell.settings, draw_secrets(cell)
    # The last tenth tells the loss, as in the other studies.
    kept = len(cell.training_text) * 9 // 10
    lines, others = ([line for line in part.split("\n") if line.strip()] for part in _parts(cell.training_text, kept))
    lines.insert(random.Random(cell.secret_seed).randrange(len(lines) + 1), canary.text)
    reference: dict[str, Any] = {"accelerator": "cpu", **settings["reference"]}
    training = ReferenceTraining(seed=cell.random_seed, **reference)
    training = training.on([*lines, *others, *canary.format.covering()])
    result = sanitize(lines, training, share=settings["share"], seed=cell.random_seed)
    place = int(result.places[lines.index(canary.text)])
    found = {"place": place / len(lines), "found": place <= settings["share"] * len(lines)}
    texts = {EVERYTHING: lines, CLEANED: list(result.clean(settings["share"]))}
    return [
        {
            "trained_on": name,
            "lines": len(left),
            **found,
            **_measured(training(left), others, canary.format, canary.text, cell),
        }
        for name, left in texts.items()
    ]


def _parts(text: str, middle: int) -> tuple[str, str]:
    return text[:middle], text[middle:]


def _measured(
    scorer: TextScorer, others: Sequence[str], format: SecretFormat, secret: str, cell: Cell
) -> dict[str, Value]:
    """The loss on lines that were not trained on, and the exposure of the secret."""
    tree = SecretTree(scorer.model, format, scorer.tokenizer)
    (estimate,) = measure_exposure(tree, [secret], budget=cell.settings["budget"], seed=cell.random_seed)
    loss = float(scorer(others).sum()) / sum(map(len, others))
    return {"test_bits": loss, **exposure_columns(estimate, tree, cell)}


def findings(rows: Sequence[Row]) -> list[str]:
    """What it takes away, what is left of the exposure, and what it costs."""
    cleaned: Row = {"trained_on": CLEANED}
    everything: Row = {"trained_on": EVERYTHING}
    return sentences(
        [
            paired("Exposure, cleaned instead of not", rows, "exposure_bits", cleaned, everything),
            paired("Loss, cleaned instead of not", rows, "test_bits", cleaned, everything, "bits per character"),
            above_chance("Left in the cleaned text", chosen(rows, cleaned)),
        ]
    )


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Exposure before and after."""
    named = [{**row, "trained_on": f"trained on {row['trained_on']}"} for row in summary]
    return bar_figure(
        named, ("trained_on",), "exposure_bits", title="Exposure before and after sanitization",
        xlabel="exposure in bits",
    )  # fmt: skip


def _reference(units: int, epochs: int, **model: Any) -> dict[str, Any]:
    return {
        "epochs": epochs,
        "model": {"num_layers": 1, "embedding_size": 16, "lr": 0.01, "hidden_size": units, **model},
    }


_SHARED = {"repetitions": 1, "share": 0.1, "budget": 200_000}

STUDIES.register("sanitization")(
    Study(
        title="Secrets found by the difference of two models, and training without them",
        source="Carlini et al., Appendix F",
        claim="The secret is always among the top 10%; without them its exposure is gone and the loss a little larger.",
        scales={
            "tiny": Scale(
                {
                    **_SHARED,
                    "characters": 6_000,
                    "format": "the random number is ###",
                    "references": 32,
                    "reference": _reference(8, 1),
                },
                [{}],
                seeds=1,
                cost="4 s of one core",
            ),
            "cpu": Scale(
                {
                    **_SHARED,
                    "characters": 110_000,
                    "format": "the random number is #####",
                    "references": 300,
                    "reference": _reference(64, 12),
                },
                [{}],
                seeds=8,
                cost="6 min of one core",
            ),
            "paper": Scale(
                {
                    **_SHARED,
                    "characters": 5_000_000,
                    "format": "The random number is #########",
                    "references": 10_000,
                    "budget": 1_000_000,
                    "reference": {
                        **_reference(200, 100, num_layers=2, embedding_size=149, lr=0.001),
                        "window": 20,
                        "batch_size": 128,
                        "accelerator": "auto",
                    },
                },
                [{}],
                seeds=100,
                cost="weeks of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        keys=("trained_on",),
        results=(
            Column("lines", digits=0),
            Column("place", digits=3),
            Column("found", "share"),
            Column("test_bits", digits=3),
            *EXPOSURE,
        ),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Appendix F (100 random partitions, secrets that stand in the data once)",
                ("among the top 10%", "loss before", "loss after", "exposure after"),
                (("100 of 100", "1.18", "1.27", "gone"),),
            ),
        ),
    )
)
