"""Runners: where the cells of a study are trained. Each is one file that registers itself."""

# Importing a runner registers it.
from lightning_exposure.studies.runners import _local, _ray  # noqa: F401
from lightning_exposure.studies.runners._registered import RUNNERS, Runner

__all__ = ["RUNNERS", "Runner"]
