"""Exposure from scores alone, by rank and by skew-normal: the cases TensorFlow Privacy publishes, and harder ones."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import integrate, stats

from lightning_exposure.errors import FitError, ScoreError
from lightning_exposure.exposure import PoorFitWarning, SkewNormal, exposure_by_rank, exposure_by_skew_normal

REFERENCES = [float(x) for x in range(1, 17)]


class TestByRank:
    def test_the_published_case(self) -> None:
        """Below all references, between them and above them; with 16 references and the secret itself, |R| is 17.

        TensorFlow Privacy takes |R| = 16 here, so that the last secret's exposure is negative; ours never is.
        """
        bits = exposure_by_rank([0.0, 0.1, 20.0, 3.5], REFERENCES)
        np.testing.assert_allclose(bits, np.log2(17) - np.log2([1, 1, 17, 4]))
        published = np.array([4.0, 4.0, math.log2(16 / 17), 2.0])
        np.testing.assert_allclose(bits, published + math.log2(17 / 16), atol=1e-12)

    def test_results_stand_in_input_order(self) -> None:
        scores = [9.5, 0.5, 16.5, 3.5]
        np.testing.assert_allclose(
            exposure_by_rank(scores, REFERENCES), [exposure_by_rank([score], REFERENCES)[0] for score in scores]
        )

    def test_a_tie_counts_against_the_secret(self) -> None:
        assert exposure_by_rank([3.0], REFERENCES)[0] == exposure_by_rank([3.5], REFERENCES)[0]
        assert exposure_by_rank([3.0], REFERENCES)[0] < exposure_by_rank([2.999], REFERENCES)[0]
        assert exposure_by_rank([5.0], [5.0] * 10)[0] == 0.0

    def test_the_order_of_references_does_not_matter(self) -> None:
        shuffled = np.random.default_rng(0).permutation(REFERENCES)
        np.testing.assert_array_equal(exposure_by_rank([3.5, 8.0], shuffled), exposure_by_rank([3.5, 8.0], REFERENCES))

    def test_no_secrets_give_no_exposures(self) -> None:
        assert exposure_by_rank([], REFERENCES).shape == (0,)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_scores_that_are_not_finite_are_refused_by_name_and_position(self, bad: float) -> None:
        with pytest.raises(ScoreError, match="scores has 1 scores that are NaN or infinite, the first at position 1"):
            exposure_by_rank([1.0, bad], REFERENCES)
        with pytest.raises(ScoreError, match="references has 1 scores"):
            exposure_by_rank([1.0], [bad, 2.0])

    def test_no_references_are_refused(self) -> None:
        with pytest.raises(ScoreError, match="references has 0 scores; expected at least 1"):
            exposure_by_rank([1.0], [])


class TestBySkewNormal:
    def test_the_published_case(self) -> None:
        """References and secrets from one skew-normal: the exposure is what scipy's fit says."""
        generator = np.random.default_rng(7)
        references = stats.skewnorm.rvs(4, 0, 1, size=10_000, random_state=generator)
        secrets = stats.skewnorm.rvs(4, 0, 1, size=7, random_state=generator)
        fitted = stats.skewnorm.fit(references)
        expected = -np.log2(stats.skewnorm.cdf(secrets, *fitted))
        np.testing.assert_allclose(exposure_by_skew_normal(secrets, references), expected, rtol=1e-9)

    @pytest.mark.parametrize("shape", [-6.0, -1.0, 0.0, 0.7, 4.0, 30.0])
    @pytest.mark.parametrize("z", [-0.6, -2.0, -5.0, -9.0])
    def test_the_tail_is_the_integral_of_the_density(self, shape: float, z: float) -> None:
        fit = SkewNormal(shape, 10.0, 2.0, 0.0, 1.0)
        score = 10.0 + 2.0 * z
        peak = float(fit.log_density(np.array([score]))[0])
        area, _ = integrate.quad(
            lambda x: math.exp(float(fit.log_density(np.array([score - x]))[0]) - peak), 0, 40, limit=500,
            points=[0.001, 0.01, 0.1, 1.0],
        )  # fmt: skip
        assert fit.log_tail(score) == pytest.approx(peak + math.log(area), rel=1e-4)

    @pytest.mark.parametrize("score", [-50.0, -1e3, -1e5])
    def test_the_far_tail_is_finite_and_grows(self, score: float) -> None:
        fit = SkewNormal.fit(np.random.default_rng(0).normal(size=2000))
        near, far = fit.exposure([score, 2 * score])
        assert math.isfinite(near)
        assert math.isfinite(far)
        assert 0 < near < far

    def test_the_interval_covers_the_truth_when_the_model_holds(self) -> None:
        truth = SkewNormal(3.0, 20.0, 5.0, 0.0, 1.0)
        scores = [19.0, 22.0]
        covered = 0
        for seed in range(40):
            references = stats.skewnorm.rvs(3.0, 20.0, 5.0, size=2000, random_state=np.random.default_rng(seed))
            fit = SkewNormal.fit(references)
            miss = np.abs(fit.exposure(scores) - truth.exposure(scores)) / fit.standard_errors(scores, references)
            covered += int((miss < 1.96).sum())
        assert covered >= 68  # 95% of 80 is 76, less three standard deviations

    def test_references_that_are_not_skew_normal_warn(self) -> None:
        generator = np.random.default_rng(0)
        two_humps = np.concatenate([generator.normal(0, 1, 2000), generator.normal(20, 1, 2000)])
        with pytest.warns(PoorFitWarning, match="Kolmogorov-Smirnov p = "):
            exposure_by_skew_normal([1.0], two_humps)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exposure_by_skew_normal([1.0], generator.normal(0, 1, 2000))

    def test_equal_references_cannot_be_fitted(self) -> None:
        with pytest.raises(FitError, match="all equal"):
            exposure_by_skew_normal([1.0], [5.0] * 100)

    def test_too_few_references_are_refused(self) -> None:
        with pytest.raises(ScoreError, match="references has 3 scores; expected at least 16"):
            exposure_by_skew_normal([1.0], [1.0, 2.0, 3.0])
