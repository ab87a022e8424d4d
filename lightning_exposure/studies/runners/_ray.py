"""The runner "ray": trials of Ray Tune, on this machine or on a cluster."""

from __future__ import annotations

import json
import logging
import os
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lightning_exposure._checks import refusal
from lightning_exposure.studies._directory import CellOutcome
from lightning_exposure.studies._work import ONE_THREAD, MissingRunnerError, RunnerError, StudyOrigin, work
from lightning_exposure.studies.runners._registered import RUNNERS
from lightning_exposure.studies.study import Cell

# Nothing about a study is for others to know; and Ray's own table of trials would cover ours.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
_REPORT = "outcome"
_ATTEMPTS = 3


@RUNNERS.register("ray")
def run_on_ray(
    origin: StudyOrigin, cells: Sequence[Cell], workers: int, *, ray_address: str | None = None, **settings: Any
) -> Iterator[CellOutcome]:
    """Train every cell as a function trial in a process of its own; rows come back in what the trials report.

    Args:
        origin: Where the study is found; on a cluster this package must be installed on every node.
        cells: What to train.
        workers: How many trials at a time, one core each.
        ray_address: Of a cluster that runs already; None: one is started here, and ended with the study.
        **settings: Of other runners.

    Raises:
        MissingRunnerError: Ray is not installed.
    """
    os.environ.update(_ENVIRONMENT)
    try:
        import ray
        from ray import tune  # noqa: F401
    except ImportError as error:
        raise MissingRunnerError(
            f"--runner ray needs Ray Tune, which is not installed ({error}); expected the packages of the extra `ray`. "
            'Install them: pip install "lightning-exposure[ray]".'
        ) from error
    _start(workers, ray_address)
    try:
        yield from _outcomes(origin, cells, max(workers, 1))
    finally:
        ray.shutdown()


def _start(workers: int, ray_address: str | None) -> None:
    """Join a cluster, or start one: on a busy machine that may take more than the half minute which Ray waits."""
    import ray

    here = {"num_cpus": max(workers, 1), "include_dashboard": False, "address": "local"}
    given: dict[str, Any] = here if ray_address is None else {"address": ray_address}
    environment = {"env_vars": {**ONE_THREAD, **_ENVIRONMENT}}
    for attempt in range(_ATTEMPTS):
        try:
            ray.init(**given, runtime_env=environment, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:  # Ray has no class of its own for this
            ray.shutdown()
            if attempt == _ATTEMPTS - 1:
                told = f"Ray says: {' '.join(str(error).split())[:300]} The runner local needs no engine."
                if ray_address is None:
                    raise refusal(
                        "--runner", "ray", "a machine on which Ray starts", told, error=RunnerError
                    ) from error
                joined = "the address of a cluster that runs and lets us in"
                token = f"If it asks for a token, set RAY_AUTH_MODE=token and give Ray that token. {told}"
                raise refusal("--ray_address", ray_address, joined, token, error=RunnerError) from error


class _Arrivals(queue.Queue[Any]):
    """What came back. Tune keeps copies of its callbacks on disk, which is no place for what they hand over."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Arrivals, ()


def _outcomes(origin: StudyOrigin, cells: Sequence[Cell], workers: int) -> Iterator[CellOutcome]:
    """Tune runs until all is done, so it runs in a thread; its callback hands over what comes, one by one."""
    arrived = _Arrivals()

    def tune_all() -> None:
        try:
            _fit(origin, cells, workers, arrived)
        except BaseException as error:
            arrived.put(error)
        else:
            arrived.put(None)

    threading.Thread(target=tune_all, daemon=True).start()
    while (outcome := arrived.get()) is not None:
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome


def _fit(origin: StudyOrigin, cells: Sequence[Cell], workers: int, arrived: _Arrivals) -> None:
    from ray import tune

    class HandOver(tune.Callback):
        """Passes on what trials report, and why those failed that could not."""

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Mapping[str, Any], **_: Any) -> None:
            if _REPORT in result:  # the last result is repeated, without it, when the trial is complete
                content = json.loads(result[_REPORT])
                arrived.put(CellOutcome(**{**content, "rows": tuple(content["rows"])}))

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            reason = " ".join(str(trial.get_error()).split())
            arrived.put(CellOutcome(cells[trial.config["place"]].key, error=f"WorkerError: {reason[-300:]}"))

    def trial(config: dict[str, Any], cells: Sequence[Cell], text: str) -> None:
        outcome = work(origin.find(), replace(cells[config["place"]], text=text))
        # As JSON: the very numbers that the runner "local" would hand over.
        tune.report({_REPORT: json.dumps(asdict(outcome))})

    with tempfile.TemporaryDirectory(prefix="study-") as directory:
        texts = {"cells": [replace(cell, text="") for cell in cells], "text": cells[0].text}
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(trial, **texts), {"cpu": 1}),
            param_space={"place": tune.grid_search(list(range(len(cells))))},
            tune_config=tune.TuneConfig(max_concurrent_trials=workers, reuse_actors=False),
            run_config=tune.RunConfig(storage_path=directory, name="cells", verbose=0, callbacks=[HandOver()]),
        )
        tuner.fit()
