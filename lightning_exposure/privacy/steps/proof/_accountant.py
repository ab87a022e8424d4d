"""Was the accountant told what was done?"""

from __future__ import annotations

from collections.abc import Sequence

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import STOPPED

Entries = Sequence[tuple[float, float, int]]


def check_accounting(
    before: Entries, after: Entries, *, steps: int, noise_multiplier: float, sample_rate: float
) -> None:
    """Refuse a history in which steps that were made are not, or are other ones.

    Args:
        before: What the accountant had when training began, as `(noise multiplier, sample rate, how many)`.
        after: What it has now.
        steps: How many steps the optimizer has made since.
        noise_multiplier: With how much noise.
        sample_rate: With which probability a record was in a batch.

    Raises:
        FitError: The accountant would report the epsilon of another training run.

    Example:
        >>> check_accounting([(1.0, 0.1, 5)], [(1.0, 0.1, 7)], steps=2, noise_multiplier=1.0, sample_rate=0.1)
        >>> check_accounting([], [(1.0, 0.1, 1)], steps=2, noise_multiplier=1.0, sample_rate=0.1)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.FitError: The accountant was told 1 steps with noise_multiplier=1 and
        sample_rate=0.1; the optimizer made 2. ...
    """
    told = _totals(after)
    for noise, rate, count in before:
        told[noise, rate] = told.get((noise, rate), 0) - count
    counted = told.pop((noise_multiplier, sample_rate), 0)
    if counted != steps:
        raise FitError(
            f"The accountant was told {counted} steps with noise_multiplier={noise_multiplier:g} and "
            f"sample_rate={sample_rate:g}; the optimizer made {steps}. Epsilon would be that of another training run. "
            f"{STOPPED}"
        )
    others = {entry: count for entry, count in told.items() if count}
    if others:
        (noise, rate), count = next(iter(others.items()))
        raise FitError(
            f"The accountant was told {count:+d} steps with noise_multiplier={noise:g} and sample_rate={rate:g}, which "
            f"nobody has made. Epsilon would be that of another training run. {STOPPED}"
        )


def _totals(history: Entries) -> dict[tuple[float, float], int]:
    totals: dict[tuple[float, float], int] = {}
    for noise, rate, count in history:
        totals[noise, rate] = totals.get((noise, rate), 0) + count
    return totals
