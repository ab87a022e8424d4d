"""One cell, from its settings to its rows: what every runner calls, in whatever process."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from lightning_exposure._checks import refusal
from lightning_exposure._files import plain
from lightning_exposure.errors import ExposureError, ModelError
from lightning_exposure.studies._directory import CellOutcome
from lightning_exposure.studies.study import STUDIES, Cell, Row, Study

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""For the environment of a process whose sums must come out the same on every machine."""

_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")


class CellError(ModelError):
    """A study returned something that does not belong in its table."""


@dataclass(frozen=True)
class StudyOrigin:
    """Where another process finds a study.

    Args:
        study: Its name.
        module: The module that registers it.
        file: That module's file; for modules that only `--import` can find.
    """

    study: str
    module: str
    file: str | None

    @classmethod
    def of(cls, name: str) -> StudyOrigin:
        """Of a study that is registered here."""
        module = STUDIES.get(name).train.__module__
        return cls(name, module, getattr(sys.modules.get(module), "__file__", None))

    def find(self) -> Study:
        """The study; its module is imported if need be."""
        if self.study not in STUDIES:
            try:
                import_module(self.module)
            except ModuleNotFoundError:
                if self.file is None:
                    raise
                _import_file(self.module, Path(self.file))
        return STUDIES.get(self.study)


def _import_file(name: str, path: Path) -> None:
    spec = spec_from_file_location(name, path)
    assert spec is not None, "every .py file has one"
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def work(study: Study, cell: Cell) -> CellOutcome:
    """Train a cell; whatever goes wrong is what its row says."""
    began = time.perf_counter()
    try:
        with _alone():
            rows = _checked(study, study.train(cell))
    except Exception as error:  # a study's own code fails in its own ways, and the others go on
        return CellOutcome(cell.key, error=_reason(error), seconds=time.perf_counter() - began)
    return CellOutcome(cell.key, rows, seconds=time.perf_counter() - began)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextmanager
def _alone() -> Iterator[None]:
    """One thread, and no hints of the libraries below, which would come once for every cell."""
    # Where it is not loaded yet, it will find one thread in the environment of the process.
    torch = sys.modules.get("torch")
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels, threads = [logger.level for logger in loggers], 1 if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(1)
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(threads)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _checked(study: Study, returned: Row | Sequence[Row]) -> tuple[Row, ...]:
    """The rows, if they have the study's columns and only numbers that are numbers."""
    rows = [returned] if isinstance(returned, Mapping) else list(returned)
    expected = (*study.keys, *(column.name for column in study.results))
    for row in rows:
        if set(row) != set(expected):
            names, columns = sorted(row), f"the columns {', '.join(map(repr, expected))}"
            raise refusal(
                "row", names, columns, "Make `keys` and `results` of the study say the same.", error=CellError
            )
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                remedy = "The training may have diverged: try a smaller learning rate."
                raise refusal(name, value, "a finite number, or None for none", remedy, error=CellError)
    # numpy's numbers become Python's: what a runner hands over is the same through a pipe, a file or a cluster.
    return tuple({name: plain(row[name], name) for name in expected} for row in rows)


@contextmanager
def one_thread_environment() -> Iterator[None]:
    """Processes that are started now have one thread for each of the libraries that count numbers."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class RunnerError(ExposureError, RuntimeError):
    """What a runner needs did not start."""


class MissingRunnerError(ExposureError, ImportError):
    """A package that a runner needs is not installed."""
