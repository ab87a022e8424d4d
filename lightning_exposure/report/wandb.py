"""What Weights & Biases gets besides scalars: charts and tables.

Never with a `step`: W&B counts its own, and Lightning's logger has counted on by the time a chart is made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_exposure._files import plain
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.record import Measurement, References, RunRecord
from lightning_exposure.report.side_by_side import defences_of, plain_settings
from lightning_exposure.report.tables import EXTRACTION_COLUMNS, VERDICT_COLUMNS, Row
from lightning_exposure.secrets import CanarySet, Redaction

ESTIMATE_COLUMNS = (
    "canary", "bits", "low", "high", "of at most", "is a bound", "rank", "ahead of the next (bits)",
    "ahead is a bound", "method",
)  # fmt: skip

_CHARTED = 20
"""Lines in one chart; of more canaries the most exposed are shown."""


def is_wandb(logger: Any) -> bool:
    """Whether a logger is a `WandbLogger`, of `lightning` or of `pytorch_lightning`."""
    return any(base.__name__ == "WandbLogger" for base in type(logger).__mro__)


def stay_offline_without_login(loggers: Sequence[Any]) -> bool:
    """If a logger is W&B's and there is no way to log in, let it log to files instead, and say so.

    A training run that costs money must not end at a login prompt. To be called before the run begins; an explicit
    `WANDB_MODE` is never changed.

    Returns:
        Whether W&B was told to stay offline.
    """
    if "WANDB_MODE" in os.environ or not any(map(is_wandb, loggers)):
        return False
    import wandb

    if wandb.run is not None or wandb.login(prompt=False):
        return False
    os.environ["WANDB_MODE"] = "offline"
    wandb.teardown()  # looking for a login has fixed W&B's settings: they are to be read again
    print(
        "W&B has no API key here: logging to local files instead (WANDB_MODE=offline). Upload them later with "
        "`wandb sync`, or run `wandb login` first.",
        file=sys.stderr,
    )
    return True


def log_canaries(run: Any, canaries: CanarySet, name: str, *, reveal: bool = False) -> None:
    """The table of what was inserted."""
    import wandb

    redaction = Redaction(canaries, shared=True, reveal=reveal)
    rows = [
        [canary.id, redaction.text(canary.text, canary.format), canary.copies, canary.held_out, canary.format.pattern]
        for canary in canaries
    ]
    run.log({f"{name}/canaries": wandb.Table(columns=["id", "text", "copies", "held out", "format"], data=rows)})


def log_history(run: Any, history: Sequence[Measurement], baseline: Mapping[str, ExposureEstimate], name: str) -> None:
    """A line per canary: its exposure over the epochs, from before training on.

    The lower end of each interval: where only a bound is known, a line through points would jump with the sample.
    """
    import wandb

    newest = history[-1].estimates
    shown = sorted(newest, key=lambda canary: -newest[canary].low)[:_CHARTED]
    epochs = [float(measurement.epoch) for measurement in history]
    lines = [[measurement.estimates[canary].low for measurement in history] for canary in shown]
    if baseline:
        epochs = [0.0, *epochs]
        lines = [[baseline[canary].low, *line] for canary, line in zip(shown, lines, strict=True)]
    chart = wandb.plot.line_series(
        xs=epochs, ys=lines, keys=shown, title="Exposure of each canary: at least (bits)", xname="epoch"
    )
    run.log({f"{name}/over_epochs": chart})


def log_estimates(run: Any, estimates: Mapping[str, ExposureEstimate], name: str) -> None:
    """The table of what was measured last: what a line of exposures cannot tell."""
    import wandb

    rows = [
        [
            canary, found.bits, found.low, found.high, found.ceiling_bits, found.is_bound, float(found.rank),
            found.margin_bits, found.margin_is_bound, found.method,
        ]
        for canary, found in estimates.items()
    ]  # fmt: skip
    run.log({f"{name}/estimates": wandb.Table(columns=list(ESTIMATE_COLUMNS), data=rows)})


def log_references(run: Any, references: Mapping[str, References], name: str) -> None:
    """The histogram of reference log-perplexities, and the skew-normal density beside it."""
    import wandb

    for format_name, found in references.items():
        if not found.costs:
            continue
        density, edges = np.histogram(found.costs, bins=40, density=True)
        middles = (edges[:-1] + edges[1:]) / 2
        lines, keys = [density.tolist()], ["references"]
        if found.fit is not None:
            lines.append(np.exp(found.fit.log_density(middles)).tolist())
            keys.append(f"skew-normal fit (KS p = {found.fit.ks_pvalue:.2g})")
        chart = wandb.plot.line_series(
            xs=middles.tolist(),
            ys=lines,
            keys=keys,
            title=f"Log-perplexity of uniformly drawn secrets: {format_name}",
            xname="bits",
        )
        histogram = wandb.Histogram(np_histogram=np.histogram(found.costs, bins=40))
        run.log({f"{name}/references/{format_name}": histogram, f"{name}/references_fit/{format_name}": chart})


def log_extractions(run: Any, rows: Sequence[Row], name: str) -> None:
    """The table of what an attack found; the rows are masked already, unless they are to be revealed."""
    import wandb

    run.log({f"{name}/table": wandb.Table(columns=list(EXTRACTION_COLUMNS), data=[list(row) for row in rows])})


def log_verdicts(run: Any, rows: Sequence[Sequence[str]], name: str) -> None:
    """The table of how many guesses find each canary."""
    import wandb

    run.log({f"{name}/verdicts": wandb.Table(columns=list(VERDICT_COLUMNS), data=[list(row) for row in rows])})


def log_defences(run: Any, record: RunRecord) -> None:
    """What was done against memorization, in the configuration of a run, so that runs can be grouped by it.

    `defences` is the list of their names, `defence` the same in one line ("none" without any), and `defence_settings`
    what is a number or a short word in their settings. No text of a canary is among them.
    """
    found = defences_of(record)
    texts = set(record.canaries.texts)
    settings = {
        str(entry.get("name", "unnamed")): {
            name: value
            for name, value in plain_settings(entry).items()
            if not (isinstance(value, str) and any(text in value or value in text for text in texts))
        }
        for entry in found
    }
    names = list(settings)
    config = {"defences": names, "defence": " + ".join(names) or "none", "defence_settings": settings}
    run.config.update(plain(config, "defences"), allow_val_change=True)
