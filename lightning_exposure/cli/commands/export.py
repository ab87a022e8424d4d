"""Write canaries as a task for another tool: lm-evaluation-harness."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from lightning_exposure.cli._console import hushed, say
from lightning_exposure.cli._formats import add_format_option, make_format
from lightning_exposure.cli._given_texts import HOW, format_of, read_given
from lightning_exposure.cli._runs import CANARIES
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.errors import ArgumentError, MissingFileError
from lightning_exposure.integrations.lm_eval import write_task
from lightning_exposure.secrets import Canary, CanarySet

TOOLS = ("lm-eval",)


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "export",
        "Write canaries, or secrets of your own, as a task for lm-evaluation-harness: 'lm_eval --include_path DIR "
        "--tasks exposure' then says how exposed each of them is in any model that the harness can run. The files hold "
        "the secrets; only you can read them.",
        epilog='The harness: pip install "lightning-exposure[lm-eval]". Its --log_samples writes the secrets down.',
    )
    parser.add_argument("tool", choices=TOOLS, metavar="TOOL", help=f"what for: {', '.join(TOOLS)}")
    parser.add_argument("--out", required=True, metavar="DIR", help="directory for the task, new or empty")
    parser.add_argument("--canaries", metavar="PATH", help="the canaries: their file, or the directory of a run")
    add_format_option(parser)
    parser.add_argument(
        "--secret", nargs="+", metavar="TEXT", help=f"complete secrets of the format instead of canaries; {HOW}"
    )
    parser.add_argument(
        "--references",
        type=int,
        default=1000,
        metavar="N",
        help="other secrets of each format to compare with; exposure cannot be told beyond about the logarithm of this "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the references (default: %(default)s)"
    )
    parser.add_argument("--task", default="exposure", metavar="NAME", help="name of the task (default: %(default)s)")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Write the task and say how to run it."""
    options = make_parser().parse_args(arguments)
    with hushed():
        wanted = _secrets(options)
        file = write_task(options.out, wanted, references=options.references, seed=options.seed, name=options.task)
    say(f"Task: {file}")
    say(f"Run it: lm_eval --model hf --model_args pretrained=MODEL --include_path {options.out} --tasks {options.task}")
    return 0


def _secrets(options: Namespace) -> CanarySet:
    """The canaries, or the secrets that were given, numbered."""
    if (options.canaries is None) == (options.secret is None):
        given = "neither" if options.canaries is None else "both"
        raise ArgumentError(
            f"--canaries and --secret: {given} of them given; expected one. Give --canaries, or --format with --secret."
        )
    if options.canaries is not None:
        if options.format is not None:
            raise ArgumentError(
                "--format is given beside --canaries; expected one of them, because canaries have formats of their "
                "own. Leave it out."
            )
        path = Path(options.canaries)
        path = path / CANARIES if path.is_dir() else path
        if not path.exists():
            raise MissingFileError(
                f"--canaries is {str(path)!r}, which does not exist; expected canaries. Check the path."
            )
        return CanarySet.load(path)
    if options.format is None:
        raise ArgumentError(
            "--secret is given without --format; expected what the secret looks like. Add it, such as --format 'my "
            "code is ####'."
        )
    format_, texts = make_format(options.format), list(dict.fromkeys(read_given(options.secret, "--secret")))
    for place, text in enumerate(texts, start=1):
        format_of(text, [format_], "--secret", f"number {place} of {len(texts)}")
    return CanarySet([Canary(f"secret-{place}", text, format_, 1) for place, text in enumerate(texts, start=1)])
