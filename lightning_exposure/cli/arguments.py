"""What the subcommands share on the command line: the parser, and how an error becomes one line."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from lightning_exposure.errors import ArgumentError, ExposureError

PROGRAM = "lightning-exposure"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: one line, and not the whole usage.

    Args:
        command: The subcommand; None for the program itself.
        summary: What it does, in a sentence or two.
        **settings: Of `argparse.ArgumentParser`.
    """

    def __init__(self, command: str | None = None, summary: str = "", **settings: Any) -> None:
        settings.setdefault("prog", PROGRAM if command is None else f"{PROGRAM} {command}")
        super().__init__(description=summary, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise instead of exit, for `main` to print."""
        raise ArgumentError(f"{message} (see '{self.prog} --help')")


def add_format_options(parser: argparse.ArgumentParser) -> None:
    """`--format` and `--pattern`: one of the named formats, or one of the user's own."""
    from lightning_exposure.secrets import NAMED_FORMATS  # not before help for a command is asked for

    names = ", ".join(NAMED_FORMATS.names())
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--format", metavar="NAME", help=f"a built-in format instead of those of the canaries: {names}")
    group.add_argument(
        "--pattern",
        metavar="TEXT",
        help="a format of your own: '#' is a digit, '?' a lower-case letter, as in 'my code is ####'",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """`CHECKPOINT`, and where the files are that belong to it."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a run's model.ckpt, or the directory of the run")
    parser.add_argument("--canaries", metavar="FILE", help="the canaries (default: canaries.json beside the model)")
    parser.add_argument("--tokenizer", metavar="FILE", help="the tokenizer (default: tokenizer.json beside the model)")
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="where the model runs: cpu, cuda, mps (default: %(default)s)"
    )


def one_line(error: BaseException) -> str:
    r"""What went wrong, without line breaks.

    Example:
        >>> one_line(FileNotFoundError(2, "No such file or directory", "model.ckpt"))
        'model.ckpt: No such file or directory'
        >>> one_line(ArgumentError("top_k is 0;\n  expected at least 1."))
        'top_k is 0; expected at least 1.'
    """
    if isinstance(error, OSError) and error.filename is not None and not isinstance(error, ExposureError):
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
