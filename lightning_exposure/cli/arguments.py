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


def add_canaries_option(parser: argparse.ArgumentParser) -> None:
    """`--canaries`: those that the model was trained with."""
    parser.add_argument("--canaries", metavar="FILE", help="the canaries (default: canaries.json beside the model)")


def add_output_options(parser: argparse.ArgumentParser, hidden: str) -> None:
    """`--json` and `--reveal`.

    Args:
        parser: What they are added to.
        hidden: What is masked unless it is revealed.
    """
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--reveal", action="store_true", help=f"show {hidden}, which are masked otherwise; canaries are always shown"
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


def in_short(error: BaseException, limit: int = 200) -> str:
    """Enough of a long message of someone else's, without line breaks.

    >>> in_short(ValueError("it cannot be done " * 20), limit=20)
    'it cannot be done...'
    """
    text = one_line(error)
    return text if len(text) <= limit else f"{text[: limit - 3].rstrip()}..."
