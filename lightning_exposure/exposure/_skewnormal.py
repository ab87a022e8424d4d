"""The paper's estimate: a skew-normal distribution fitted to reference log-perplexities, and its lower tail.

Kept because people compare with the paper. It extrapolates far beyond its data, and a test of the fit where the data
are says nothing about the tail where the answer is read off: see the benchmarks for how far it is off.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate, special, stats

from lightning_exposure.errors import FitError
from lightning_exposure.exposure._ranking import finite_scores

_LN2 = math.log(2.0)
_TAIL = 1e-8
"""Below this probability scipy's distribution function loses digits, and further out all of them."""

_FAR = -100.0
"""Beyond so many standard units the tail is density / rate to within a ten-thousandth."""

_REFERENCES = 16
"""Three parameters from fewer scores than this would be fiction."""


class PoorFitWarning(UserWarning):
    """The references do not look like a skew-normal sample (Kolmogorov-Smirnov p < 0.01)."""


@dataclass(frozen=True)
class SkewNormal:
    """A skew-normal distribution fitted to scores.

    Attributes:
        shape: Skewness parameter (alpha).
        location: Location parameter.
        scale: Scale parameter, positive.
        ks_statistic: Kolmogorov-Smirnov distance between the scores and the fit.
        ks_pvalue: Its p-value.
    """

    shape: float
    location: float
    scale: float
    ks_statistic: float
    ks_pvalue: float

    @classmethod
    def fit(cls, references: ArrayLike) -> SkewNormal:
        """The maximum-likelihood fit to reference scores.

        Raises:
            ScoreError: Too few references, or one that is NaN or infinite.
            FitError: No distribution fits, for example because all scores are equal.
        """
        scores = finite_scores(references, "references", at_least=_REFERENCES)
        spread = float(np.ptp(scores))
        if spread <= 1e-9 * max(1.0, float(np.abs(scores).max())):
            raise FitError(
                f"references has {len(scores)} scores that are all equal ({scores[0]:.6g}); a distribution needs "
                "spread. The model does not tell the secrets apart: use method='exact' or 'importance'."
            )
        try:
            shape, location, scale = (float(value) for value in stats.skewnorm.fit(scores))
        except (stats.FitError, ValueError, RuntimeError, FloatingPointError) as error:
            raise FitError(f"no skew-normal fits the {len(scores)} references: {error}. Use more of them.") from error
        if not all(map(math.isfinite, (shape, location, scale))) or scale <= 0:
            raise FitError(
                f"the skew-normal fit of {len(scores)} references did not converge (shape {shape}, location "
                f"{location}, scale {scale}). Use more references, or method='importance'."
            )
        test = stats.kstest(scores, stats.skewnorm(shape, location, scale).cdf)
        return cls(shape, location, scale, float(test.statistic), float(test.pvalue))

    def log_density(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """The natural logarithm of the density, finite however far out."""
        z = (scores - self.location) / self.scale
        result: NDArray[np.float64] = (
            math.log(2.0 / self.scale) - 0.5 * (z * z + math.log(2.0 * math.pi)) + special.log_ndtr(self.shape * z)
        )
        return result

    def log_tail(self, score: float) -> float:
        """The natural logarithm of the probability of a score at most this one, finite however far out."""
        z = (score - self.location) / self.scale
        probability = float(stats.skewnorm.cdf(z, self.shape))
        if probability > _TAIL:
            return min(0.0, math.log(probability))
        standard = SkewNormal(self.shape, 0.0, 1.0, 0.0, 1.0)
        peak = float(standard.log_density(np.array([z]))[0])
        # How fast the density falls below z: the tail is about density / rate, and the further out the closer.
        ratio = -0.5 * ((self.shape * z) ** 2 + math.log(2.0 * math.pi)) - float(special.log_ndtr(self.shape * z))
        rate = -z + self.shape * math.exp(ratio)
        if z < _FAR:
            return peak - math.log(rate)

        def decay(units: float) -> float:
            return math.exp(float(standard.log_density(np.array([z - units / rate]))[0]) - peak)

        area, _ = integrate.quad(decay, 0.0, 60.0, limit=200)
        return peak + math.log(area / rate)

    def exposure(self, scores: ArrayLike) -> NDArray[np.float64]:
        """`-log2 P(score at most this one)`, in the order given."""
        values = finite_scores(scores, "scores")
        return np.array([-self.log_tail(float(value)) / _LN2 for value in values])

    def standard_errors(self, scores: ArrayLike, references: ArrayLike) -> NDArray[np.float64]:
        """Standard errors of `exposure` in bits, if the references really are skew-normal (delta method).

        Args:
            scores: Where exposure is asked for.
            references: What the distribution was fitted to.
        """
        values = finite_scores(scores, "scores")
        data = finite_scores(references, "references")
        theta = np.array([self.shape, self.location, self.scale])
        steps = 1e-3 * np.array([max(1.0, abs(self.shape)), self.scale, self.scale])

        def at(point: NDArray[np.float64]) -> SkewNormal:
            return SkewNormal(float(point[0]), float(point[1]), float(point[2]), 0.0, 1.0)

        # Score vectors of the single references; their outer product estimates the Fisher information.
        gradients = np.stack(
            [
                (at(theta + step).log_density(data) - at(theta - step).log_density(data)) / (2.0 * step.sum())
                for step in np.diag(steps)
            ]
        )
        covariance = np.linalg.pinv(gradients @ gradients.T)
        slopes = np.stack(
            [
                (at(theta + step).exposure(values) - at(theta - step).exposure(values)) / (2.0 * step.sum())
                for step in np.diag(steps)
            ]
        )
        result: NDArray[np.float64] = np.sqrt(np.einsum("is,ij,js->s", slopes, covariance, slopes).clip(min=0.0))
        return result


def exposure_by_skew_normal(scores: ArrayLike, references: ArrayLike) -> NDArray[np.float64]:
    """The paper's exposure of each secret, in bits, in the order of the scores.

    Warns:
        PoorFitWarning: The references do not look skew-normal (Kolmogorov-Smirnov p < 0.01).

    Example:
        >>> import numpy as np
        >>> references = np.random.default_rng(0).normal(30.0, 2.0, size=1000)
        >>> exposure_by_skew_normal([30.0], references).round(1).tolist()
        [1.0]
    """
    fit = SkewNormal.fit(references)
    warn_if_poor(fit)
    return fit.exposure(scores)


def warn_if_poor(fit: SkewNormal) -> None:
    """Say so when a fit does not look like its data."""
    if fit.ks_pvalue < 0.01:
        warnings.warn(
            f"the references do not look skew-normal (Kolmogorov-Smirnov p = {fit.ks_pvalue:.2g}): the estimate "
            "cannot be trusted. Use method='auto', which needs no distribution.",
            PoorFitWarning,
            stacklevel=3,
        )
