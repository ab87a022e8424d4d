"""Write a run, or a comparison, as one page of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_exposure.cli._console import hushed, say
from lightning_exposure.cli._outputs import check_page_file
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.report import MissingExtraError, RunRecord, write_report
from lightning_exposure.report.comparison import FILE_NAME as COMPARISON
from lightning_exposure.report.comparison import Comparison
from lightning_exposure.report.pages.comparison import write_comparison


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "report",
        "Write what a run measured (its exposure.json), or a comparison (comparison.json), as one page of HTML.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the directory of the run")
    parser.add_argument("--path", metavar="FILE", help="the page (default: report.html in the directory of the run)")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Write the page and say where."""
    options = make_parser().parse_args(arguments)
    run_dir = Path(options.run_dir)
    target = options.path or (run_dir if run_dir.is_dir() else run_dir.parent)
    if options.path is not None:
        check_page_file("--path", options.path)
    with hushed():
        say(f"Report: {_write(run_dir, target)}")
    return 0


def _write(run_dir: Path, target: str | Path) -> Path:
    if (run_dir / COMPARISON).exists() or run_dir.name == COMPARISON:
        return write_comparison(Comparison.load(run_dir), target)
    return write_report(RunRecord.load(run_dir), target)


def report_if_possible(record: RunRecord, run_dir: Path) -> str:
    """Write the page at the end of a run, and say where; without the packages for it, say how to get them."""
    try:
        return f"Report: {write_report(record, run_dir)}"
    except MissingExtraError as error:
        return f"No report: {error} Then: lightning-exposure report {run_dir}"
