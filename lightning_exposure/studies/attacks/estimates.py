"""How well can a rank be estimated? Carlini et al., Figures 2, 3 and 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_exposure.errors import FitError
from lightning_exposure.exposure import ExposureEstimate, measure_exposure
from lightning_exposure.secrets import CanarySet, SecretFormat
from lightning_exposure.studies._scales import cpu, paper, tiny
from lightning_exposure.studies.figures import scatter_figure, to_float
from lightning_exposure.studies.study import STUDIES, Cell, Column, PaperTable, Row, Scale, Study, Value
from lightning_exposure.studies.training import StudyModel, train_language_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS: tuple[Any, ...] = ("sampling", "skewnormal", "importance")
BANDS = ((0.0, 5.0), (5.0, 10.0), (10.0, 15.0), (15.0, 64.0))
"""Of exact exposure, in bits."""


def train(cell: Cell) -> list[Row]:
    """One model with secrets of all numbers of insertions, looked at in several epochs."""
    secret_format = SecretFormat(cell.settings["format"])
    canaries = CanarySet.draw(secret_format, repetitions=cell.settings["insertions"], seed=cell.secret_seed)
    rows: list[Row] = []

    def measure(trained: StudyModel) -> None:
        if trained.epoch in cell.settings["looks"]:
            rows.extend(_rows(trained, canaries, cell))

    train_language_model(cell, canaries, after_epoch=measure)
    return rows


def _rows(trained: StudyModel, canaries: CanarySet, cell: Cell) -> list[Row]:
    tree = trained.tree(canaries[0].format)
    exact = measure_exposure(tree, canaries.texts, method="exact", budget=10_000_000)
    rows: list[Row] = []
    for method in METHODS:
        estimates = _estimates(tree, canaries, method, cell)
        for canary, truth, estimate in zip(canaries, exact, estimates, strict=True):
            place: dict[str, Value] = {"secret": canary.id, "epoch": trained.epoch, "method": method}
            rows.append({**place, **_compared(truth, estimate)})
    return rows


def _estimates(tree: Any, canaries: CanarySet, method: Any, cell: Cell) -> Sequence[ExposureEstimate | None]:
    try:
        return measure_exposure(
            tree, canaries.texts, method=method, samples=cell.settings["references"], seed=cell.random_seed
        )
    except FitError:
        return [None] * len(canaries)


def _compared(truth: ExposureEstimate, estimate: ExposureEstimate | None) -> dict[str, Value]:
    if estimate is None:
        return {"exact_bits": truth.bits, "estimate_bits": None, "error_bits": None, "covered": None, "ks_pvalue": None}
    inside = estimate.low <= truth.high + 1e-9 and estimate.high >= truth.low - 1e-9
    # An estimate that is only a bound is no error as long as it holds.
    error = min(0.0, truth.bits - estimate.bits) if estimate.is_bound else truth.bits - estimate.bits
    return {
        "exact_bits": truth.bits,
        "estimate_bits": estimate.bits,
        "error_bits": abs(error),
        "covered": inside or (estimate.is_bound and truth.bits >= estimate.low),
        "ks_pvalue": estimate.ks_pvalue,
    }


def summarize(study: Study, rows: Sequence[Row]) -> list[dict[str, Value]]:
    """For each method and each band of exact exposure: the errors, and how often the interval holds."""
    summary: list[dict[str, Value]] = []
    for method in METHODS:
        for low, high in BANDS:
            inside = [row for row in rows if row["method"] == method and low <= to_float(row["exact_bits"]) < high]
            errors = [to_float(row["error_bits"]) for row in inside if row["error_bits"] is not None]
            if not errors:
                continue
            covered = [bool(row["covered"]) for row in inside if row["covered"] is not None]
            rejected = [to_float(row["ks_pvalue"]) < 0.01 for row in inside if row["ks_pvalue"] is not None]
            band = f"{low:.0f} to {high:.0f}" if high < BANDS[-1][1] else f"{low:.0f} and more"
            summary.append(
                {
                    "method": method,
                    "exact_bits": band,
                    "measurements": len(errors),
                    "median_error_bits": float(np.median(errors)),
                    "largest_error_bits": max(errors),
                    "interval_holds": float(np.mean(covered)),
                    "fit_rejected": float(np.mean(rejected)) if rejected else None,
                }
            )
    return summary


def draw(rows: Sequence[Row], summary: Sequence[Row]) -> Figure:
    """Every estimate against the exact exposure; what is only a lower bound has a mark of its own."""
    named = [{**row, "method": f"{row['method']}{', at least' if _holds_as_bound(row) else ''}"} for row in rows]
    return scatter_figure(
        named, "exact_bits", "estimate_bits", by="method", title="Estimates against exact exposure",
        xlabel="exact exposure in bits", ylabel="estimate in bits", diagonal=True,
    )  # fmt: skip


def _holds_as_bound(row: Row) -> bool:
    """Whether an estimate is below the truth and yet no error: only a lower bound is that."""
    return to_float(row["exact_bits"]) - to_float(row["estimate_bits"]) > to_float(row["error_bits"]) + 1e-6


STUDIES.register("estimates")(
    Study(
        title="Exact exposure against every estimate of it",
        source="Carlini et al., Figures 2, 3 and 6",
        claim="Log-perplexities look skew-normal, and the estimate follows the true exposure.",
        scales={
            "tiny": Scale(tiny(insertions=[0, 1, 4], looks=[1, 2], epochs=2), [{}], seeds=1, cost="2 s of one core"),
            "cpu": Scale(
                cpu(
                    format="the random number is #####",
                    insertions=[0, 0, 1, 1, 2, 4, 8],
                    references=1000,
                    looks=[1, 2, 4, 6, 9, 12],
                    epochs=12,
                ),
                [{}],
                seeds=5,
                cost="1 min of one core",
            ),
            "paper": Scale(
                paper(insertions=[0, 0, 1, 1, 2, 4, 8], looks=[1, 2, 5, 10, 20, 40], epochs=40),
                [{}],
                seeds=10,
                cost="a day of one GPU; give the Penn Treebank with --text",
            ),
        },
        train=train,
        keys=("secret", "epoch", "method"),
        results=(
            Column("exact_bits"),
            Column("estimate_bits"),
            Column("error_bits"),
            Column("covered", "share"),
            Column("ks_pvalue"),
        ),
        summarize=summarize,
        draw=draw,
        paper=(
            PaperTable(
                "Carlini et al., Figures 2, 3 and 6",
                ("figure", "what is reported"),
                (
                    ("2, 3", "log-perplexities of all secrets follow a skew-normal distribution"),
                    ("6", "the estimated exposure follows the true one; no numbers are given"),
                ),
            ),
        ),
    )
)
