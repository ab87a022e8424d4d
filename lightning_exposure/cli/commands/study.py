"""Run a study of the papers again: train a grid of models, and write its table and figure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lightning_exposure._checks import refusal, whole_number
from lightning_exposure.cli._console import say
from lightning_exposure.cli.arguments import PROGRAM, Parser
from lightning_exposure.data.corpora import python_topics, read_text
from lightning_exposure.report.tables import text_table
from lightning_exposure.studies import RUNNERS, SCALES, STUDIES, Study, StudyProgress, StudyResult, readable, run_study
from lightning_exposure.studies.pages import write_page

_ACTIONS = ("list", "show", "page")


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "study",
        "Train the models of one of the papers' tables or figures, in small or as the paper did, and put the numbers "
        "beside the paper's. 'list' names the studies, 'show NAME' says what one trains and what it costs, 'page NAME' "
        "renews a page of the documentation from its results.",
        epilog=f"For example: {PROGRAM} study capacity --scale tiny --out capacity. The same command again goes on "
        "where it stopped: rows are on disk as soon as they are known. Leaves table.csv (a row for each training), "
        "summary.csv (means over the seeds, with 95% intervals) and figure.png.",
    )
    parser.add_argument("action", metavar="NAME|list|show|page", help="a study, or what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="for show and page: the study")
    parser.add_argument("--scale", default="cpu", metavar="NAME", help=f"{', '.join(SCALES)} (default: %(default)s)")
    parser.add_argument("--seeds", type=int, metavar="N", help="trainings with each settings (default: the scale's)")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="trainings at a time; 0: in this process (default: 1)"
    )
    parser.add_argument(
        "--runner", default="local", metavar="NAME", help=f"{' or '.join(RUNNERS.names())} (default: %(default)s)"
    )
    parser.add_argument("--ray_address", metavar="ADDRESS", help="with --runner ray: of a cluster that runs already")
    parser.add_argument("--text", metavar="FILE", help="another text, in UTF-8 (default: Python's help topics)")
    parser.add_argument("--out", metavar="DIR", help="directory for all results (default: studies/NAME-SCALE)")
    parser.add_argument("--docs", metavar="DIR", default="docs/studies", help="for page: where (default: %(default)s)")
    return parser


def run(arguments: Sequence[str]) -> int:
    """List, show, run, or write a page.

    Returns:
        The exit code: 0, or 1 if a training failed.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.name is not None and options.action not in ("show", "page"):
        parser.error(f"unrecognized argument {options.name!r}")
    if options.action == "list":
        return _list()
    if options.action in _ACTIONS and options.name is None:
        parser.error(f"{options.action} is given without a study; expected one of {', '.join(STUDIES.names())}")
    if options.action == "show":
        return _show(options.name, STUDIES.get(options.name, argument="NAME"))
    if options.action == "page":
        STUDIES.get(options.name, argument="NAME")
        say(f"Page: {write_page(options.name, Path(_out(options.name, options)), Path(options.docs))}")
        return 0
    return _run(options.action, options)


def _out(name: str, options: object) -> str:
    given: str | None = getattr(options, "out")  # noqa: B009
    return given or os.path.join("studies", f"{name}-{getattr(options, 'scale')}")  # noqa: B009


def _run(name: str, options: object) -> int:
    study = STUDIES.get(name, argument="NAME")
    settings = vars(options)
    directory = _out(name, options)
    text = python_topics() if settings["text"] is None else read_text(settings["text"], "--text")
    whole_number("--workers", settings["workers"], at_least=0)
    if settings["ray_address"] is not None and settings["runner"] != "ray":
        expected = f"nothing with --runner {settings['runner']!r}"
        raise refusal("--ray_address", settings["ray_address"], expected, "Give --runner ray as well.")
    with _watched(study) as progress:
        result = run_study(
            name,
            directory,
            scale=settings["scale"],
            seeds=settings["seeds"],
            text=text,
            runner=settings["runner"],
            workers=settings["workers"],
            watch=progress,
            ray_address=settings["ray_address"],
        )
    _conclude(study, result)
    return 1 if result.failed else 0


# ---- what there is ----------------------------------------------------------------------------------------------


def _list() -> int:
    for name in STUDIES.names():
        study = STUDIES.get(name)
        say(f"{name:16}{study.title} ({study.source})")
    return 0


def _show(name: str, study: Study) -> int:
    say(f"{name}: {study.title}\nSource: {study.source}\nClaim:  {study.claim}")
    for scale_name, scale in study.scales.items():
        cells = study.cells(name, scale_name)
        say(f"\n--scale {scale_name}: {len(cells)} trainings ({len(scale.grid)} settings, {scale.seeds} seeds each)")
        say(f"  cost: {scale.cost}")
        for factor in study.factors:
            values = list(dict.fromkeys(str(place[factor]) for place in scale.grid if factor in place))
            if values:
                say(f"  {factor}: {', '.join(values)}")
        for key, value in scale.settings.items():
            say(f"  {key} = {value}")
    for table in study.paper:
        say(f"\n{table.title}\n{text_table(table.columns, table.rows)}")
    return 0


# ---- while it runs ----------------------------------------------------------------------------------------------


@contextmanager
def _watched(study: Study) -> Iterator[Callable[[StudyProgress], None]]:
    """A bar with the time left on a terminal; a line for each training elsewhere."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("training")

        def progress(now: StudyProgress) -> None:
            left = "" if now.seconds_left is None else f", {_duration(now.seconds_left)} left"
            bar.update(task, completed=now.done, total=now.total, description=f"training{left}")
            if now.cell is None and now.done:
                bar.console.print(f"{now.done} of {now.total} were there already", highlight=False)
            elif now.cell is not None and now.outcome is not None:
                where = ", ".join(f"{name}={now.cell.settings.get(name)}" for name in study.factors)
                what = now.outcome.error or f"{now.outcome.seconds:.1f} s"
                line = f"[{now.done}/{now.total}] {where}{', ' if where else ''}seed={now.cell.seed}: {what}"
                bar.console.print(
                    line if console.is_terminal else line + left, markup=False, highlight=False, soft_wrap=True
                )

        yield progress


def _duration(seconds: float) -> str:
    """In the unit that suits.

    >>> _duration(42), _duration(400), _duration(9000)
    ('about 42 s', 'about 7 min', 'about 2.5 h')
    """
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000 else f"about {seconds / 3600:.1f} h"


def _conclude(study: Study, result: StudyResult) -> None:
    columns, rows = readable(study, result.summary)
    say(f"{study.title} ({study.source})\nClaim: {study.claim}\n")
    if rows:
        say(text_table(columns, rows))
    for finding in result.findings:
        say(f"- {finding}")
    for row in result.failed:
        say(f"failed: {', '.join(f'{name}={value}' for name, value in row.items() if name != 'error')}: {row['error']}")
    figure = "" if result.figure is None else f", {result.figure.name}"
    say(f"\nIntervals are 95%: Student's t for means, Clopper-Pearson for shares. Files in {result.directory}: "
        f"table.csv, summary.csv{figure}")  # fmt: skip
