"""Check that a model is within limits, for continuous integration: the exit code is 1 if it is not."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lightning_exposure._checks import check_confidence, number, whole_number
from lightning_exposure._files import write_whole
from lightning_exposure.cli._checking import check
from lightning_exposure.cli._console import hushed, say, say_json
from lightning_exposure.cli._formats import add_format_option
from lightning_exposure.cli._given_texts import HOW
from lightning_exposure.cli._outputs import check_appendable, check_replaceable, given_files, refuse_inputs
from lightning_exposure.cli.arguments import Parser, add_canaries_option
from lightning_exposure.cli.models import add_reference_options
from lightning_exposure.errors import ArgumentError
from lightning_exposure.report.limits.check import is_junit


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "check",
        "Check that no canary of a model is more exposed, and no more privacy was spent, than is allowed. A run is "
        "judged by its record; what that leaves open, and weights that were trained on since, are measured. The exit "
        "code is 0 if the model is within the limits, 1 if it is not or if that stays open, and 2 for an error.",
    )
    parser.add_argument(
        "model",
        metavar="RUN_OR_MODEL",
        help="the directory of a run, one that save_pretrained() wrote, or a Lightning checkpoint",
    )
    parser.add_argument("--max_exposure", type=float, metavar="BITS", help="the largest exposure that is allowed")
    parser.add_argument("--max_epsilon", type=float, metavar="X", help="the largest epsilon that may have been spent")
    parser.add_argument("--junit", metavar="FILE", help="write the result as JUnit XML")
    parser.add_argument(
        "--summary", metavar="FILE", help="add the result to a Markdown file, such as $GITHUB_STEP_SUMMARY"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    add_canaries_option(parser)
    add_format_option(parser)
    parser.add_argument(
        "--secret", nargs="+", metavar="TEXT", help=f"complete secrets to check instead of canaries; {HOW}"
    )
    parser.add_argument("--model_class", metavar="MODULE:NAME", help="of a checkpoint: the LightningModule it is of")
    parser.add_argument("--tokenizer", metavar="PATH", help="the tokenizer, if it is not beside the model")
    add_reference_options(parser, "measure against what this model expects, which has not seen the secrets")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where the model runs (default: %(default)s)")
    for name, default, words in (
        ("budget", 100_000, "expansions of an exact count at most"),
        ("samples", 4096, "walks of an estimate at most"),
        ("max_effort", 16, "how many times that much is allowed for what is undecided"),
        ("seed", 0, "random seed of the walks"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{words} (default: {default})")
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="P", help="of the answer (default: %(default)s)"
    )
    return parser


def run(arguments: Sequence[str]) -> int:
    """Check, and say why."""
    options = make_parser().parse_args(arguments)
    if options.max_exposure is None and options.max_epsilon is None:
        raise ArgumentError(
            "--max_exposure and --max_epsilon are not given; expected at least one limit. For example: --max_exposure "
            "10"
        )
    if options.max_exposure is not None:
        number("--max_exposure", options.max_exposure, at_least=0, remedy="It is in bits.")
    if options.max_epsilon is not None:
        number("--max_epsilon", options.max_epsilon, above=0)
    for name in ("budget", "samples", "max_effort"):
        whole_number(f"--{name}", getattr(options, name), at_least=1)
    whole_number("--seed", options.seed, at_least=0)
    check_confidence(options.confidence)
    _check_files(options)
    with hushed():
        result = check(options)
    if options.junit is not None:
        write_whole(Path(options.junit), result.to_junit())
    if options.summary is not None:
        result.append_summary(options.summary)
    if options.json:
        say_json(result.to_dict())
    else:
        say(result.sentence)
    return 0 if result.passed else 1


def _check_files(options: Namespace) -> None:
    """Refuse to write over what is read, or over what somebody else wrote."""
    names = ("canaries", "tokenizer", "reference", "reference_tokenizer")
    inputs = {"RUN_OR_MODEL": options.model, **{f"--{name}": getattr(options, name) for name in names}}
    inputs |= {f"--secret @{path}": path for path in given_files(options.secret)}
    if options.junit is not None:
        refuse_inputs("--junit", options.junit, inputs)
        check_replaceable("--junit", Path(options.junit), is_junit, "an earlier result of this command")
    if options.summary is not None:
        if options.junit is not None and Path(options.junit).absolute() == Path(options.summary).absolute():
            raise ArgumentError("--summary is the file of --junit; expected another one. Name two files.")
        check_appendable("--summary", options.summary, inputs)
