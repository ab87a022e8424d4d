"""The runner "local": processes of this machine, with one thread each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from lightning_exposure.studies._directory import CellOutcome
from lightning_exposure.studies._work import StudyOrigin, one_thread_environment, work
from lightning_exposure.studies.runners._registered import RUNNERS
from lightning_exposure.studies.study import Cell


@RUNNERS.register("local")
def run_locally(origin: StudyOrigin, cells: Sequence[Cell], workers: int, **settings: Any) -> Iterator[CellOutcome]:
    """Train in processes that are started afresh; with `workers=0` in this very process, one after the other."""
    if workers == 0:
        study = origin.find()
        yield from (work(study, cell) for cell in cells)
        return
    waiting, busy = deque(cells), set[_Worker]()
    try:
        for _ in range(min(workers, len(cells))):
            busy.add(_Worker.start(origin, waiting.popleft()))
        while busy:
            by_connection = {worker.connection: worker for worker in busy}
            for connection in wait(list(by_connection)):
                worker = by_connection[connection]  # type: ignore[index]
                busy.remove(worker)
                yield worker.outcome()
                if waiting:
                    busy.add(worker.go_on(waiting.popleft()))
                else:
                    worker.stop()
    finally:
        for worker in busy:
            worker.stop()


@dataclass(eq=False)
class _Worker:
    """A process, and the cell that it is at."""

    process: SpawnProcess
    connection: Connection
    origin: StudyOrigin
    cell: Cell

    @classmethod
    def start(cls, origin: StudyOrigin, cell: Cell) -> _Worker:
        # A fresh interpreter: a fork would share the locks of threads that it does not have.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, origin, cell.text), daemon=True)
        with one_thread_environment():
            process.start()
        theirs.close()  # so that the end of the process is the end of what can be read
        worker = cls(process, ours, origin, cell)
        worker._send()
        return worker

    def go_on(self, cell: Cell) -> _Worker:
        """The same process with the next cell, or a new one if this one has ended."""
        if not self.process.is_alive():
            self.stop()
            return _Worker.start(self.origin, cell)
        self.cell = cell
        self._send()
        return self

    def _send(self) -> None:
        with suppress(OSError):  # it has ended: `outcome` will say so
            self.connection.send(replace(self.cell, text=""))  # the text is there already

    def outcome(self) -> CellOutcome:
        try:
            outcome: CellOutcome = self.connection.recv()
            return outcome
        except (EOFError, OSError):
            self.process.join()
            return CellOutcome(self.cell.key, error=f"WorkerError: its process {_end(self.process.exitcode)}")

    def stop(self) -> None:
        # Lightning turns a polite request into an exception that the cell would report as its own.
        self.process.kill()
        self.process.join()
        self.connection.close()


def _end(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name}); it may have run out of memory"
    return f"ended with exit code {code} before the cell was done"


def _serve(connection: Connection, origin: StudyOrigin, text: str) -> None:
    """What a worker does: cell after cell, until nobody asks any more."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    study = origin.find()
    while True:
        try:
            cell: Cell = connection.recv()
        except EOFError:
            return
        connection.send(work(study, replace(cell, text=text)))


def _die_with_parent() -> None:
    """End at once when the parent has ended, even if it was killed: the system closes its end of a pipe."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has one"
    parent.join()
    os._exit(1)
