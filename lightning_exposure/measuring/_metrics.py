"""What a measurement of exposure is called in logs.

No name is the directory of another: dashboards show names with slashes as folders, and `ModelCheckpoint` makes folders
of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightning_exposure.errors import ArgumentError
from lightning_exposure.exposure import ExposureEstimate
from lightning_exposure.report.record import Measurement

SUMMARIES = ("max", "mean", "seconds", "cut")
"""What stands beside the ids of canaries."""

OTHERS = ("canaries", "estimates", "over_epochs", "references", "references_fit")
"""Tables and charts beside them."""


def refuse_names_of_summaries(ids: Iterable[str]) -> None:
    """Refuse canaries whose metrics would overwrite others.

    Raises:
        ArgumentError: An id is the name of a metric or of a chart.
    """
    taken = [name for name in ids if name in (*SUMMARIES, *OTHERS)]
    if taken:
        raise ArgumentError(
            f"canaries has the id {taken[0]!r}, which is the name of a metric or chart over all canaries and would "
            f"overwrite it; expected any other than {', '.join((*SUMMARIES, *OTHERS))}. Give the canary another id."
        )


def exposure_metrics(
    name: str, measurement: Measurement, baseline: Mapping[str, ExposureEstimate] | None = None
) -> dict[str, float]:
    """All numbers of a measurement by their names.

    Args:
        name: The first part of the names.
        measurement: What was measured.
        baseline: What the model gave before it was trained, by canary id.

    Returns:
        `name/<id>`, `name_low/<id>`, `name_high/<id>` for each canary, `name/max`, `name/mean`, `name_low/max`,
        `name_high/max` over all of them, `name/seconds`, and beside a baseline `name_gain/<id>` and `name_gain/mean`.
    """
    estimates = measurement.estimates
    bits = {key: estimate.bits for key, estimate in estimates.items()}
    metrics = {f"{name}/{key}": value for key, value in bits.items()}
    metrics |= {f"{name}_low/{key}": estimate.low for key, estimate in estimates.items()}
    metrics |= {f"{name}_high/{key}": estimate.high for key, estimate in estimates.items()}
    metrics |= {
        f"{name}/max": max(bits.values()),
        f"{name}/mean": sum(bits.values()) / len(bits),
        f"{name}_low/max": max(estimate.low for estimate in estimates.values()),
        f"{name}_high/max": max(estimate.high for estimate in estimates.values()),
        f"{name}/seconds": measurement.seconds,
    }
    if baseline:
        gains = {key: gain(estimate, baseline[key]) for key, estimate in estimates.items()}
        metrics |= {f"{name}_gain/{key}": value for key, value in gains.items()}
        metrics[f"{name}_gain/mean"] = sum(gains.values()) / len(gains)
    return metrics


def gain(now: ExposureEstimate, before: ExposureEstimate) -> float:
    """By how much an exposure rose; of a bound, which is no point, the end that does not make the gain larger.

    >>> exact = ExposureEstimate("a", 9.0, 9.0, 9.0, "exact", 1, 3.0, 9.0, False, 0.95, 9)
    >>> at_least_two = ExposureEstimate("a", 9.0, 2.0, 9.0, "importance", 1, 3.0, 9.0, True, 0.95, 9)
    >>> gain(exact, at_least_two), gain(at_least_two, exact)
    (0.0, -7.0)
    """
    return (now.low if now.is_bound else now.bits) - (before.high if before.is_bound else before.bits)
