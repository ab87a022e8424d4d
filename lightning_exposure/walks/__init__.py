"""The algorithms: each a pure function of a tree, which differ only in the order in which they expand its nodes."""

from lightning_exposure.walks.batches import DEFAULT_MEMORY
from lightning_exposure.walks.beam import beam
from lightning_exposure.walks.best_first import SearchProgress, SearchResult, best_first
from lightning_exposure.walks.distinct import DistinctWalks, distinct_walks, log_weights
from lightning_exposure.walks.enumerate import Leaves, Ranks, count_ranks, enumerate_leaves
from lightning_exposure.walks.sample import ModelWalks, UniformSample, model_walks, uniform_walks
from lightning_exposure.walks.score import Scores, score

__all__ = [
    "DEFAULT_MEMORY",
    "DistinctWalks",
    "Leaves",
    "ModelWalks",
    "Ranks",
    "Scores",
    "SearchProgress",
    "SearchResult",
    "UniformSample",
    "beam",
    "best_first",
    "count_ranks",
    "distinct_walks",
    "enumerate_leaves",
    "log_weights",
    "model_walks",
    "score",
    "uniform_walks",
]
