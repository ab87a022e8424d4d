"""Ways to measure exposure, one file each."""

# Importing a method registers it.
from lightning_exposure.exposure.methods import _auto, _exact, _importance, _sampling, _skewnormal  # noqa: F401
from lightning_exposure.exposure.methods._registered import METHODS, Method, MethodName
from lightning_exposure.exposure.methods._sampling import measure_by_sampling, rank_counts
from lightning_exposure.exposure.methods._skewnormal import measure_by_skew_normal

__all__ = ["METHODS", "Method", "MethodName", "measure_by_sampling", "measure_by_skew_normal", "rank_counts"]
