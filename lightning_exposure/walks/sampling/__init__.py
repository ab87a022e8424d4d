"""Walks at random: uniformly, as the model likes, and without coming to the same secret twice."""

from lightning_exposure.walks.sampling.distinct import DistinctSampler, DistinctWalks, distinct_walks
from lightning_exposure.walks.sampling.independent import (
    ModelWalks,
    PriorWalks,
    UniformSample,
    model_walks,
    prior_walks,
    uniform_walks,
)
from lightning_exposure.walks.sampling.weights import log_weights

__all__ = [
    "DistinctSampler",
    "DistinctWalks",
    "ModelWalks",
    "PriorWalks",
    "UniformSample",
    "distinct_walks",
    "log_weights",
    "model_walks",
    "prior_walks",
    "uniform_walks",
]
