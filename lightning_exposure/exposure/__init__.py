"""Numbers: how exposed a secret is, exactly or estimated, always with an interval."""

from lightning_exposure.exposure._case import TreeCase
from lightning_exposure.exposure._prior import PriorProbabilities
from lightning_exposure.exposure.estimate import measure_exposure
from lightning_exposure.exposure.methods import METHODS, MethodName
from lightning_exposure.exposure.metric import Exposure
from lightning_exposure.exposure.priors import (
    prior_from_model,
    weights_of_checkpoint,
    weights_on_cpu,
    with_weights,
    without_adapters,
)
from lightning_exposure.exposure.ranking import exposure_by_rank
from lightning_exposure.exposure.result import ExposureEstimate
from lightning_exposure.exposure.scored import exposure_from_scores
from lightning_exposure.exposure.skewnormal import PoorFitWarning, SkewNormal, exposure_by_skew_normal
from lightning_exposure.exposure.tied import measure_tied_exposure

__all__ = [
    "METHODS",
    "Exposure",
    "ExposureEstimate",
    "MethodName",
    "PoorFitWarning",
    "PriorProbabilities",
    "SkewNormal",
    "TreeCase",
    "exposure_by_rank",
    "exposure_by_skew_normal",
    "exposure_from_scores",
    "measure_exposure",
    "measure_tied_exposure",
    "prior_from_model",
    "weights_of_checkpoint",
    "weights_on_cpu",
    "with_weights",
    "without_adapters",
]
