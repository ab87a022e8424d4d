"""Is a number more exposed in digits or in words? A model of words. Carlini et al., section 7.3."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

from lightning_exposure.exposure import ExposureEstimate, measure_exposure
from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.studies._scales import merged
from lightning_exposure.studies.comparing import paired, sentences
from lightning_exposure.studies.figures import line_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study
from lightning_exposure.studies.training import LOSSES, StudyModel, skew_normal_bits, train_language_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def spellings(blanks: int) -> dict[str, SecretFormat]:
    """The same numbers, as digits and as words, one token each."""
    return {
        "digits": SecretFormat("my number is " + " ".join("#" * blanks), name="digits"),
        "words": SecretFormat("my number is " + " ".join(["{digit}"] * blanks), name="words", digit=NAMES),
    }


def train(cell: Cell) -> list[Row]:
    """One model of words, with numbers in both spellings, inserted more and less often."""
    formats = spellings(cell.settings["blanks"])
    repetitions = [count for count in cell.settings["insertions"] for _ in range(cell.settings["canaries"])]
    drawn = [CanarySet.draw(one, repetitions=repetitions, seed=cell.secret_seed) for one in formats.values()]
    trained = train_language_model(cell, CanarySet([canary for part in drawn for canary in part]))
    rows: list[Row] = []
    for (spelling, secret_format), part in zip(formats.items(), drawn, strict=True):
        tree = trained.tree(secret_format)
        budget = cell.settings["budget"]
        found = measure_exposure(tree, part.texts, budget=budget, seed=cell.random_seed)
        for count in dict.fromkeys(repetitions):
            chosen = [one for canary, one in zip(part, found, strict=True) if canary.repetitions == count]
            rows.append({"spelling": spelling, "insertions": count, **_row(trained, secret_format, chosen, cell)})
    return rows


def _row(trained: StudyModel, format: SecretFormat, found: Sequence[ExposureEstimate], cell: Cell) -> Row:
    margins = [estimate.margin_bits for estimate in found if estimate.margin_bits is not None]
    estimates = [skew_normal_bits(trained.tree(format), estimate.secret, cell) for estimate in found]
    known = [bits for bits in estimates if bits is not None]
    return {
        **trained.losses,
        "asked": len(found),
        "exposure_bits": mean(estimate.bits for estimate in found),
        "size_bits": found[0].size_bits,
        "first": mean(estimate.rank == 1 for estimate in found),
        "margin_bits": mean(margins) if margins else None,
        "skewnormal_bits": mean(known) if known else None,
    }


def findings(rows: Sequence[Row]) -> list[str]:
    """Digits against words, and what was inserted against what was not."""
    counts, spelled = (list(dict.fromkeys(row[name] for row in rows)) for name in ("insertions", "spelling"))
    inserted = [count for count in counts if count]
    return sentences(
        [
            *(
                paired(
                    f"Digits instead of words, insertions: {count}",
                    rows,
                    "exposure_bits",
                    {"spelling": "digits", "insertions": count},
                    {"spelling": "words", "insertions": count},
                )
                for count in inserted
            ),
            *(
                paired(
                    f"As {spelling}, insertions: {count} instead of none",
                    rows,
                    "exposure_bits",
                    {"spelling": spelling, "insertions": count},
                    {"spelling": spelling, "insertions": 0},
                )
                for spelling in spelled
                for count in inserted
            ),
        ]
    )


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Exposure against insertions, a line for each spelling."""
    return line_figure(
        summary, "insertions", "exposure_bits", by="spelling", title="Numbers as digits and as words",
        xlabel="insertions", ylabel="exposure in bits",
    )  # fmt: skip


_TINY = {
    "characters": 12_000,
    "epochs": 1,
    "blanks": 3,
    "insertions": [0, 4],
    "canaries": 1,
    "budget": 20_000,
    "references": 32,
    "model": {"architecture": "lstm", "num_layers": 1, "hidden_size": 8, "embedding_size": 8, "optimizer": "adam"},
    "data": {"level": "word", "words": 200, "window": 20, "batch_size": 32, "whole_canaries": True},
}
_CPU = merged(
    _TINY,
    {
        "characters": 150_000,
        "epochs": 8,
        "blanks": 5,
        "insertions": [0, 1, 4, 16],
        "canaries": 3,
        "references": 300,
        "model": {"hidden_size": 64, "embedding_size": 64, "lr": 0.005},
        "data": {"words": 2_000},
    },
)

STUDIES.register("words")(
    Study(
        title="Numbers as digits and as words, in a model of words",
        source="Carlini et al., section 7.3",
        claim="Models of words memorize, too: 25 bits for digits, 12 for the words of numbers.",
        scales={
            "tiny": Scale(_TINY, [{}], seeds=1, cost="3 s of one core"),
            "cpu": Scale(_CPU, [{}], seeds=8, cost="1.5 min of one core"),
            "paper": Scale(
                merged(
                    _CPU,
                    {
                        "characters": 5_000_000,
                        "epochs": 40,
                        "blanks": 9,
                        "budget": 1_000_000,
                        "references": 10_000,
                        "model": {"num_layers": 2, "hidden_size": 1215, "embedding_size": 1215, "lr": 0.001},
                        "data": {"words": 10_000},
                        "trainer": {"accelerator": "auto"},
                    },
                ),
                [{}],
                seeds=3,
                cost="a day of one GPU (48M parameters); give the Penn Treebank with --text",
            ),
        },
        train=train,
        keys=("spelling", "insertions"),
        results=(
            *LOSSES,
            Column("asked", "leave out"),
            Column("exposure_bits", least=0, most="size_bits"),
            Column("size_bits", "leave out"),
            Column("first", "share", share_of="asked"),
            Column("margin_bits", least=0),
            Column("skewnormal_bits", least=0),
        ),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., section 7.3 (48M parameters)",
                ("secret", "exposure"),
                (("digits as words", "25"), ("number words", "12")),
            ),
        ),
    )
)
