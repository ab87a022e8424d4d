"""Take the secrets out of a text, or put others of the same format in their place."""

from __future__ import annotations

import os
import sys
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

from lightning_exposure._checks import refusal
from lightning_exposure.cli.arguments import Parser
from lightning_exposure.defences.redacting import Redactor
from lightning_exposure.errors import ArgumentError, DataError, MissingFileError
from lightning_exposure.secrets import Scanner, SecretFormat
from lightning_exposure.secrets.scanner import KINDS

_AT_ONCE = 2**16


def make_parser() -> Parser:
    """What can be asked for."""
    parser = Parser(
        "redact",
        "Take the secrets out of a text (card and social security numbers, addresses, keys, passwords, ...): each "
        "becomes the name of its kind, or another one of the same format that is nobody's where such exist. Files of "
        "any size are read in parts. No secret is printed. Pseudonyms are still personal data: whoever has the key can "
        "tell whose they are.",
    )
    parser.add_argument("text", metavar="TEXT", help="a UTF-8 text file; '-' reads standard input")
    parser.add_argument(
        "--how", choices=("mask", "pseudonym"), default="mask",
        help="what takes the place of a secret: the name of its kind, or another of its format (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="where the text goes; a new file (default: standard output)")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, metavar="KIND", help=f"what to look for (default: all): {', '.join(KINDS)}"
    )
    parser.add_argument(
        "--pattern", action="append", default=[], metavar="TEXT",
        help="a format of your own to look for, such as 'my code is ####'; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--region", default="US", metavar="CC", help="country of phone numbers without one (default: %(default)s)"
    )
    parser.add_argument(
        "--key_file",
        metavar="FILE",
        help="what pseudonyms depend on, at least 16 bytes (default: a key of this machine)",
    )
    parser.add_argument("--json", action="store_true", help="print the counts as JSON; needs --out")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Redact, and say how much."""
    options = make_parser().parse_args(arguments)
    if options.json and options.out is None:
        raise ArgumentError(
            "--json is given without --out; expected both, because the text is printed. Add --out FILE."
        )
    scanner = Scanner(map(SecretFormat, options.pattern), kinds=options.kinds, region=options.region)
    redactor = Redactor(scanner, options.how, key=_key(options.key_file))
    with _source(options.text) as read, _target(options) as write, _progress(options) as update:
        for part in redactor.stream(_counted(read, options.text, update)):
            write.write(part)
    _say_counts(redactor, options)
    return 0


def _say_counts(redactor: Redactor, options: Namespace) -> None:
    from lightning_exposure.cli._console import say, say_json

    found = dict(sorted(redactor.counts.items()))
    if options.json:
        say_json({"how": options.how, "out": options.out, "total": sum(found.values()), "counts": found})
        return
    listed = ", ".join(f"{kind} {count:,}" for kind, count in found.items())
    total = sum(found.values())
    said = f"{total:,} secret{'' if total == 1 else 's'} redacted{': ' if listed else ''}{listed}."
    if options.out is None:
        print(said, file=sys.stderr)  # the text is on standard output
    else:
        say(f"{said} Written: {options.out}")


def _key(path: str | None) -> bytes | None:
    if path is None:
        return None
    content = Path(path).read_bytes()
    if len(content) < 16:
        raise refusal("--key_file", path, "a file of at least 16 bytes", "For example: head -c 32 /dev/urandom > FILE")
    return content


@contextmanager
def _source(path: str) -> Iterator[IO[str]]:
    if path == "-":
        sys.stdin.reconfigure(encoding="utf-8", newline="")  # type: ignore[union-attr]
        yield sys.stdin
        return
    if not Path(path).is_file():
        raise MissingFileError(f"TEXT is {path!r}, which is no file; expected a UTF-8 text file. Check the path.")
    with open(path, encoding="utf-8", newline="") as file:  # line breaks stay what they are
        yield file


def _counted(file: IO[str], name: str, update: Callable[[int, int], None]) -> Iterator[str]:
    """A file in parts."""
    total = Path(name).stat().st_size if name != "-" else 0
    done = 0
    try:
        while part := file.read(_AT_ONCE):
            if "\0" in part:
                raise DataError(f"TEXT is {name!r}, a binary file; expected a UTF-8 text file. Check the path.")
            yield part
            done += len(part)
            if total:
                update(min(done, total), total)
    except UnicodeDecodeError as error:
        raise DataError(
            f"TEXT is {name!r}, which is not UTF-8 ({error.reason}); expected a UTF-8 text file. Convert it, for "
            "example with iconv -t utf-8."
        ) from error


@contextmanager
def _target(options: Namespace) -> Iterator[IO[str]]:
    """Where the text goes: a new file that is there as a whole or not at all, and for its owner only."""
    if options.out is None:
        yield sys.stdout
        return
    target = Path(options.out)
    if target.exists():
        raise ArgumentError(f"--out is {options.out!r}, which exists; expected a new file, because nothing is "
                            "overwritten. Name another one.")  # fmt: skip
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
        os.link(temporary, target)  # refuses what was written there meanwhile
    except FileExistsError as error:
        raise ArgumentError(f"--out is {options.out!r}, which exists by now; expected a new file.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _progress(options: Namespace) -> AbstractContextManager[Callable[[int, int], None]]:
    if options.out is None or not sys.stderr.isatty():
        return nullcontext(lambda done, total: None)
    from lightning_exposure.cli._console import progress_bar  # loads PyTorch

    return progress_bar("redacting")
