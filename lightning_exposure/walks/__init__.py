"""The algorithms: each a pure function of a tree, which differ only in the order in which they expand its nodes."""

from lightning_exposure.walks.batches import DEFAULT_MEMORY
from lightning_exposure.walks.beam import beam
from lightning_exposure.walks.best_first import SearchResult, Stop, best_first
from lightning_exposure.walks.enumerate import Leaves, RankCounts, Ranks, count_ranks, enumerate_leaves
from lightning_exposure.walks.heaviest_first import Mass, heaviest_first
from lightning_exposure.walks.progress import Progress
from lightning_exposure.walks.rounding import Rounding, measure_rounding
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
from lightning_exposure.walks.score import Scores, score
from lightning_exposure.walks.weighed_tree import WeighedTree

__all__ = [
    "DEFAULT_MEMORY",
    "DistinctSampler",
    "DistinctWalks",
    "Leaves",
    "Mass",
    "ModelWalks",
    "PriorWalks",
    "Progress",
    "RankCounts",
    "Ranks",
    "Rounding",
    "Scores",
    "SearchResult",
    "Stop",
    "UniformSample",
    "WeighedTree",
    "beam",
    "best_first",
    "count_ranks",
    "distinct_walks",
    "enumerate_leaves",
    "heaviest_first",
    "log_weights",
    "measure_rounding",
    "model_walks",
    "prior_walks",
    "score",
    "uniform_walks",
]
