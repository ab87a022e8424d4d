"""Skew-normal: the paper's extrapolation from secrets drawn uniformly."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np

from lightning_exposure.exposure._case import Case, TreeCase
from lightning_exposure.exposure.intervals import normal_margin
from lightning_exposure.exposure.methods._registered import METHODS
from lightning_exposure.exposure.methods._sampling import draw_from_prior, rank_from_draws
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.exposure.skewnormal import SkewNormal, warn_if_poor
from lightning_exposure.tokenization.paths import path_keys


def measure_by_skew_normal(case: Case) -> list[ExposureEstimate]:
    """The paper's extrapolation; its interval holds only if the log-perplexities really are skew-normal."""
    draws = draw_from_prior(case) if isinstance(case, TreeCase) and case.prior is not None else None
    sample = case.references(case.seed) if draws is None else draws
    possible = sample.costs[np.isfinite(sample.costs)]
    # What the model rules out has no log-perplexity to fit; it is more expensive than any secret measured.
    share = -math.log2(len(possible) / len(sample.costs)) if len(possible) else 0.0
    fit = SkewNormal.fit(possible)
    warn_if_poor(fit)
    errors = fit.standard_errors(case.costs, possible)
    first = np.zeros(len(sample.costs), dtype=bool)
    if draws is not None:
        first[np.unique(path_keys(draws.paths), return_index=True)[1]] = True
    estimates = []
    for i, (tail, error) in enumerate(zip(fit.exposure(case.costs), errors, strict=True)):
        bits = float(tail) + share
        rank = max(sys.float_info.min, 2.0 ** (case.size_bits - bits))
        # An error that cannot be computed says nothing is known: as wide as the whole scale, never as narrow as 0.
        margin = normal_margin(float(error), case.confidence) if math.isfinite(error) else case.size_bits
        drawn = "drawn uniformly" if draws is None else "drawn from the prior"
        if draws is not None and isinstance(case, TreeCase):  # the tail is one of the prior, and not a count
            rank = rank_from_draws(case, draws, first & (draws.costs <= case.costs[i]))
        rests_on = f"a skew-normal fit to {len(possible):,} {case.noun} {drawn}, read off where there are no data"
        estimates.append(
            replace(
                case.estimate(i, "skewnormal", rank, (1, 1), sample.expansions, rests_on, mass=1.0),
                bits=bits,
                low=max(0.0, bits - margin),
                high=bits + margin,
                ks_statistic=fit.ks_statistic,
                ks_pvalue=fit.ks_pvalue,
            )
        )
    return estimates


# Not as a decorator: it also measures what is not in a tree.
METHODS.register("skewnormal", priority=0)(measure_by_skew_normal)
