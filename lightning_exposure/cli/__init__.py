"""The `lightning-exposure` command.

Every subcommand is a module of its own in `commands/`, loaded when it is asked for.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from lightning_exposure import __version__
from lightning_exposure.cli._importing import IMPORT, import_named
from lightning_exposure.cli.arguments import PROGRAM, Parser, one_line
from lightning_exposure.errors import ArgumentError, ExposureError

__all__ = ["main"]


def _commands() -> dict[str, str]:
    """The files of `commands/`: each is the subcommand of its name, and begins with what it does.

    They are read, not imported: help for all of them must not wait for PyTorch.
    """
    found = {}
    for path in sorted(Path(__file__).with_name("commands").glob("[a-z]*.py")):
        first_line = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        found[path.stem] = f"{first_line[:1].lower()}{first_line[1:].removesuffix('.')}"
    return found


COMMANDS = _commands()
"""Every subcommand, and what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: What follows the program's name; None: those of this process.

    Returns:
        The exit code: 0, 2 for an error that the user can correct, 130 after Ctrl-C.
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
    while arguments and arguments[0].partition("=")[0] == IMPORT:
        _, equals, given = arguments.pop(0).partition("=")
        if not equals and not arguments:
            raise ArgumentError(f"{IMPORT} is given without a value; expected a module or a file. Name one after it.")
        import_named(given if equals else arguments.pop(0))
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
        epilog=f"'{PROGRAM} COMMAND --help' shows the options of a command. To get started: {PROGRAM} demo",
    )
    parser.add_argument(
        IMPORT,
        metavar="MODULE",
        help="before the command: a module or a .py file of your own to import first, such as one that registers a "
        "format or an attack; may be repeated",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary)
    return parser
