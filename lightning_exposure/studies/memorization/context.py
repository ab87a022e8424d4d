"""What does it help to know what stands around the secret? Carlini et al., Table 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lightning_exposure.secrets import Canary, SecretFormat
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.comparing import chosen, paired, sentences
from lightning_exposure.studies.figures import line_figure, to_float
from lightning_exposure.studies.study import STUDIES, Cell, PaperTable, Row, Scale, Study, product
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

KNOWN = 5
"""Characters before, and after."""

BETWEEN = {"nothing": "", "a dash": "-", "a dash and spaces": " - "}
"""What stands between two digits."""

_BEFORE, _AFTER = "the random number is ", " and so on"


def train(cell: Cell) -> list[Row]:
    """One model; what is between the digits is trained, what is around them is known to the adversary or not."""
    settings = cell.settings
    digits = BETWEEN[settings["between"]].join("#" * settings["digits"])
    canaries = draw_secrets(cell, f"{_BEFORE}{digits}{_AFTER}")
    (canary,) = canaries
    rows: list[Row] = []

    def measure(trained: StudyModel) -> None:
        if trained.epoch not in settings["looks"]:
            return
        for known in ("nothing", "before", "after", "both") if settings["between"] == "nothing" else ("nothing",):
            format_, secret = seen_by(canary, digits, known)
            found = exposure_row(trained, format_, secret, cell)
            rows.append({"known": known, "epoch": trained.epoch, **trained.losses, **found})

    train_language_model(cell, canaries, after_epoch=measure)
    return rows


def seen_by(canary: Canary, digits: str, known: str) -> tuple[SecretFormat, str]:
    """The format and the secret for one who knows so much of what stands around it.

    One who knows nothing still knows that a number begins after a space: every model reads something first.
    """
    number = canary.text.removeprefix(_BEFORE).removesuffix(_AFTER)
    before = _BEFORE[-KNOWN:] if known in ("before", "both") else " "
    after = _AFTER[:KNOWN] if known in ("after", "both") else ""
    return SecretFormat(f"{before}{digits}{after}"), f"{before}{number}{after}"


def findings(rows: Sequence[Row]) -> list[str]:
    """At the last look: what it helps to know, and what it does to have characters between the digits."""
    last = chosen(rows, {"epoch": max((row["epoch"] for row in rows), key=to_float)})
    nothing: Row = {"between": "nothing", "known": "nothing"}
    known, between = (list(dict.fromkeys(row[name] for row in rows)) for name in ("known", "between"))
    others: list[tuple[str, Row]] = [
        *((f"{one} known", {"between": "nothing", "known": one}) for one in known if one != "nothing"),
        *((f"{one} between", {"between": one, "known": "nothing"}) for one in between if one != "nothing"),
    ]
    return sentences(paired(f"{name} instead of nothing", last, "exposure_bits", one, nothing) for name, one in others)


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Exposure at each look, a line for each kind of knowledge."""
    named = [{**row, "adversary": f"{row['known']} known\n{row['between']} between"} for row in summary]
    return line_figure(
        named, "epoch", "exposure_bits", by="adversary", title="What it helps to know the surroundings",
        xlabel="epoch", ylabel="exposure in bits",
    )  # fmt: skip


STUDIES.register("context")(
    Study(
        title="Exposure by what the adversary knows before, after and inside the secret",
        source="Carlini et al., Table 3",
        claim="Context adds about a bit; fixed characters between the digits make the secret more exposed in the end.",
        scales={
            "tiny": Scale(
                tiny(digits=3, looks=[1, 2], epochs=2, data={"window": 48}),
                product(between=["nothing", "a dash"]),
                seeds=1,
                cost="3 s of one core",
            ),
            "cpu": Scale(
                cpu(digits=5, looks=[5, 10], epochs=10),
                product(between=list(BETWEEN)),
                seeds=6,
                cost="3 min of one core",
            ),
            "paper": Scale(
                paper(digits=9, looks=[5, 10], epochs=10),
                product(between=list(BETWEEN)),
                seeds=10,
                cost="hours of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        keys=("known", "epoch"),
        results=(*LOSSES, *EXPOSURE),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Table 3: exposure at epochs 5 and 10 (ten models)",
                ("known", "5", "10"),
                (
                    ("nothing", "5.0", "6.1"),
                    ("five characters before", "6.3", "7.1"),
                    ("five characters after", "5.0", "6.8"),
                    ("both", "6.1", "7.5"),
                    ("fixed characters between the digits (own models)", "5.1", "9.5"),
                    ("more of them (own models)", "5.2", "11.1"),
                ),
            ),
        ),
    )
)
