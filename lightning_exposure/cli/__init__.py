"""The `lightning-exposure` command.

Every subcommand is a module of its own, loaded when it is asked for: help for all of them must not wait for PyTorch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from lightning_exposure import __version__
from lightning_exposure.cli.arguments import PROGRAM, Parser, one_line
from lightning_exposure.errors import ExposureError

__all__ = ["main"]


COMMANDS = {
    "demo": "see it work: train a small model on text with planted secrets, and get them out again",
    "fit": "train a language model with canaries in its data, and measure them all the while",
    "measure": "say how exposed the secrets in a trained model are",
    "extract": "attack a trained model: which secrets does it give away?",
    "compare": "train with more and less privacy, and see what it does to a secret",
    "report": "write a run, or a comparison, as one page of HTML",
}
"""Every subcommand, which is also the name of its module, and what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What follows the program's name; None: those of this process.

    Returns:
        The exit code: 0, 2 for an error that the user can mend, 130 after Ctrl-C.
    """
    try:
        return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ExposureError, OSError) as error:
        print(f"{PROGRAM}: error: {one_line(error)}", file=sys.stderr)
        return 2


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        command = import_module(f"{__name__}.commands.{arguments[0]}")
        code: int = command.run(arguments[1:])
        return code
    parser = _top_level_parser()
    parser.parse_args(arguments)
    parser.print_help()
    return 0


def _top_level_parser() -> Parser:
    parser = Parser(
        None,
        "Measure how much a language model has memorized its secrets, and try to extract them.",
        epilog=f"'{PROGRAM} COMMAND --help' tells the options of a command. To begin: {PROGRAM} demo",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary)
    return parser
