"""What does differentially private training do to the secret? Carlini et al., Table 7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_exposure.callbacks import DifferentialPrivacy
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.comparing import above_chance, chosen, paired, sentences
from lightning_exposure.studies.figures import bar_figure
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, product
from lightning_exposure.studies.training import EXPOSURE, LOSSES, draw_secrets, exposure_row, train_language_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_PRIVACY = "no privacy"
CLIP_ONLY = "clip only"


def noise_of(privacy: str) -> dict[str, Any] | None:
    """How much noise a setting asks for, as an argument of `DifferentialPrivacy`; None without privacy.

    >>> noise_of("noise 0.5"), noise_of("epsilon 1.21"), noise_of("clip only"), noise_of("no privacy")
    ({'noise_multiplier': 0.5}, {'target_epsilon': 1.21}, {'noise_multiplier': 0.0}, None)
    """
    if privacy == NO_PRIVACY:
        return None
    if privacy == CLIP_ONLY:
        return {"noise_multiplier": 0.0}
    name, amount = privacy.split()
    return {{"noise": "noise_multiplier", "epsilon": "target_epsilon"}[name]: float(amount)}


def train(cell: Cell) -> Row:
    """One model: plain, with clipped gradients, or with noise as well."""
    settings, canaries = cell.settings, draw_secrets(cell)
    noise = noise_of(settings["privacy"])
    private = None
    if noise is not None:
        private = DifferentialPrivacy(**noise, seed=cell.random_seed, verbose=False, **settings["differential_privacy"])
    trained = train_language_model(
        cell,
        canaries,
        model={"optimizer": settings["optimizer"], "lr": settings["lr"][settings["optimizer"]]},
        callbacks=[] if private is None else [private],
        max_epochs=settings.get("epochs_of", {}).get(settings["optimizer"], settings["epochs"]),
    )
    epsilon = math.inf if private is None else private.epsilon
    found = exposure_row(trained, canaries[0].format, canaries[0].text, cell)
    return {"epsilon": epsilon if math.isfinite(epsilon) else None, **trained.losses, **found}


def findings(rows: Sequence[Row]) -> list[str]:
    """What each setting does to the exposure, against no privacy; and whether noise leaves anything of it."""
    settings = list(dict.fromkeys((row["optimizer"], row["privacy"]) for row in rows))
    asked = [
        paired(
            f"{optimizer}, {privacy} instead of {NO_PRIVACY}",
            rows,
            "exposure_bits",
            {"optimizer": optimizer, "privacy": privacy},
            {"optimizer": optimizer, "privacy": NO_PRIVACY},
        )
        for optimizer, privacy in settings
        if privacy != NO_PRIVACY and (optimizer, NO_PRIVACY) in settings
    ]
    noisy = [place for place in settings if str(place[1]).startswith("noise")]
    asked += [
        above_chance(f"Left with {optimizer}, {privacy}", chosen(rows, {"optimizer": optimizer, "privacy": privacy}))
        for optimizer, privacy in noisy
    ]
    return sentences(asked)


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """The exposure with each setting."""
    return bar_figure(
        summary, ("optimizer", "privacy"), "exposure_bits", title="Exposure with and without privacy",
        xlabel="exposure in bits",
    )  # fmt: skip


def _private(norm: float, delta: float, accountant: str) -> dict[str, Any]:
    return {"max_grad_norm": norm, "delta": delta, "accountant": accountant}


_PAPER_PRIVACY = ("epsilon 0.65", "epsilon 1.21", "epsilon 5.26", "epsilon 89", "epsilon 2e8", "epsilon 1e9")
_CPU_PRIVACY = (NO_PRIVACY, CLIP_ONLY, "noise 0.01", "noise 0.1", "noise 1")

STUDIES.register("privacy")(
    Study(
        title="Exposure after differentially private training",
        source="Carlini et al., Table 7",
        claim="With noise the secret is not exposed, however large epsilon is; clipping alone helps SGD.",
        scales={
            "tiny": Scale(
                tiny(lr={"rmsprop": 0.01, "sgd": 1.0}, differential_privacy=_private(1.0, 1e-3, "rdp")),
                product(optimizer=["sgd"], privacy=[NO_PRIVACY, CLIP_ONLY, "noise 1"]),
                seeds=1,
                cost="6 s of one core",
            ),
            "cpu": Scale(
                cpu(
                    # SGD memorizes late: with as few epochs as RMSProp there would be nothing to protect.
                    epochs_of={"sgd": 24},
                    lr={"rmsprop": 0.01, "sgd": 8.0},
                    format="the random number is #####",
                    differential_privacy=_private(1.0, 1e-5, "prv"),
                ),
                (
                    *product(optimizer=["rmsprop"], privacy=_CPU_PRIVACY),
                    *product(optimizer=["sgd"], privacy=[NO_PRIVACY, CLIP_ONLY]),
                ),
                seeds=6,
                cost="20 min of one core",
            ),
            "paper": Scale(
                paper(
                    epochs=100,
                    lr={"rmsprop": 0.001, "sgd": 2.0},
                    differential_privacy=_private(10.0, 1e-9, "rdp"),
                ),
                # Row by row, with as much noise as gives these epsilons.
                (
                    *product(optimizer=["rmsprop"], privacy=[NO_PRIVACY, *_PAPER_PRIVACY]),
                    *product(optimizer=["sgd"], privacy=[NO_PRIVACY, CLIP_ONLY]),
                ),
                seeds=3,
                cost="days of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        results=(Column("epsilon", "median"), *LOSSES, *EXPOSURE),
        findings=findings,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Table 7 (100 epochs, one insertion, delta 1e-9, clipping norm 10, moments accountant)",
                ("optimizer", "epsilon", "test loss", "exposure"),
                (
                    ("RMSProp", "0.65", "1.69", "1.1"),
                    ("RMSProp", "1.21", "1.59", "2.3"),
                    ("RMSProp", "5.26", "1.41", "1.8"),
                    ("RMSProp", "89", "1.34", "2.1"),
                    ("RMSProp", "2e8", "1.32", "3.2"),
                    ("RMSProp", "1e9", "1.26", "2.8"),
                    ("SGD", "infinite (clipping only)", "2.11", "3.6"),
                    ("SGD", "no DP", "1.86", "9.5"),
                    ("RMSProp", "no DP", "1.17", "31.0"),
                ),
            ),
        ),
    )
)
