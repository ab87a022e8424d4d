"""The algorithms: each a pure function of a tree, which differ only in the order in which they expand its nodes."""

from lightning_exposure.walks._beam import beam
from lightning_exposure.walks._best_first import SearchProgress, SearchResult, best_first
from lightning_exposure.walks._distinct import DistinctSampler, DistinctWalks, distinct_walks
from lightning_exposure.walks._enumerate import Leaves, RankCounts, Ranks, count_ranks, enumerate_leaves
from lightning_exposure.walks._rounding import Rounding, measure_rounding
from lightning_exposure.walks._sample import (
    ModelWalks,
    PriorWalks,
    UniformSample,
    model_walks,
    prior_walks,
    uniform_walks,
)
from lightning_exposure.walks._tallies import scales
from lightning_exposure.walks._weighed_tree import WeighedChildren, WeighedTree
from lightning_exposure.walks._weights import log_weights
from lightning_exposure.walks.batches import DEFAULT_MEMORY
from lightning_exposure.walks.score import Scores, score

__all__ = [
    "DEFAULT_MEMORY",
    "DistinctSampler",
    "DistinctWalks",
    "Leaves",
    "ModelWalks",
    "PriorWalks",
    "RankCounts",
    "Ranks",
    "Rounding",
    "Scores",
    "SearchProgress",
    "SearchResult",
    "UniformSample",
    "WeighedChildren",
    "WeighedTree",
    "beam",
    "best_first",
    "count_ranks",
    "distinct_walks",
    "enumerate_leaves",
    "log_weights",
    "measure_rounding",
    "model_walks",
    "prior_walks",
    "scales",
    "score",
    "uniform_walks",
]
