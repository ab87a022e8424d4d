"""What people see: a silent Lightning, progress while something runs, numbers in words."""

from __future__ import annotations

import json
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from lightning_exposure._files import plain
from lightning_exposure.cli.arguments import PROGRAM
from lightning_exposure.exposure import ExposureEstimate, PoorFitWarning
from lightning_exposure.measuring import AuditWarning, UntrainedPriorWarning
from lightning_exposure.measuring.gate import GateWarning
from lightning_exposure.report.amounts import exposure_text, margin_text, rank_text
from lightning_exposure.report.tables import text_table
from lightning_exposure.report.verdicts import Verdict, is_exact

_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")


@contextmanager
def hushed() -> Iterator[None]:
    """Without the hints and warnings of the libraries below, which a user of the command can do nothing about.

    Our own warnings are shown, in one line each.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shown in (PoorFitWarning, AuditWarning, UntrainedPriorWarning, GateWarning):
            warnings.simplefilter("always", shown)
        warnings.showwarning = _show_warning
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"{PROGRAM}: warning: {' '.join(str(message).split())}", file=sys.stderr)


def say(text: str = "") -> None:
    """Print a line at once, so that a pipe shows it when it is said."""
    print(text, flush=True)


def say_json(value: object) -> None:
    """Print a value as JSON."""
    say(json.dumps(plain(value, "output"), ensure_ascii=False, indent=1))


@contextmanager
def spinner(title: str) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says how far something is; nothing where there is no terminal.

    Yields:
        A function that changes what the line says.
    """
    # On standard error: what is printed can go to a file, and the line still shows.
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda text: progress.update(task, description=f"{title}: {text}")


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal; nothing where there is no terminal.

    Yields:
        A function that takes how much is done, and how much there is.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one core.

    A second one makes so small an LSTM little faster, and much slower if anything else runs; and sums come out a little
    different for every number of threads, where a demonstration had better look the same everywhere.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def search_progress(update: Callable[[str], None]) -> Callable[[int, int, float], None]:
    """What `extract` calls, for a line that `spinner` shows."""

    def progress(expansions: int, open_nodes: int, best: float) -> None:
        found = "nothing found yet" if best == math.inf else f"best so far {best:.1f} bits"
        update(f"{expansions:,} nodes read, {open_nodes:,} open, {found}")

    return progress


def exposure_table(names: Sequence[str], estimates: Sequence[ExposureEstimate], verdicts: Sequence[Verdict]) -> str:
    """Estimates under their headings, one line each, and how many guesses find the secret.

    Of a secret of rank 1, the rank says by how many bits it is ahead of the next one.
    """
    rows = [
        (
            name or "-",
            estimate.secret,
            exposure_text(estimate, 2, ">= "),
            "exact" if is_exact(estimate) else f"[{estimate.low:.2f}, {estimate.high:.2f}]",
            f"{estimate.ceiling_bits:.2f}",
            _rank_cell(estimate),
            verdict.short,
            f"{estimate.log_perplexity:.2f}",
            estimate.method,
        )
        for name, estimate, verdict in zip(names, estimates, verdicts, strict=True)
    ]
    headings = ("canary", "secret", "exposure", "interval", "of at most", "rank", "guesses", "log-perplexity", "method")
    return text_table(headings, rows)


def _rank_cell(estimate: ExposureEstimate) -> str:
    if estimate.margin_bits is None:
        return rank_text(estimate)
    sign = "" if estimate.margin_is_bound else "+"
    return f"{rank_text(estimate)} ({sign}{margin_text(estimate, 1, '>=')} bits)"
