"""Secrets on the command line: as they are, from a file, or from standard input, so that no shell remembers them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightning_exposure.errors import ArgumentError, ExposureError, MissingFileError, SecretError
from lightning_exposure.secrets import SecretFormat

HOW = "'@FILE' reads them from a file and '-' from standard input, one per line, so that no shell remembers them"
_INPUT = "-"


def read_given(values: Sequence[str], option: str) -> list[str]:
    """The texts that an option was given: each is itself, `@FILE`, or `-` for standard input.

    Files have one text per line; empty lines count for nothing, and spaces count.

    Raises:
        ArgumentError: There is none, or it is not UTF-8.
        MissingFileError: There is no such file.
    """
    if values.count(_INPUT) > 1:
        raise ArgumentError(f"{option} is '{_INPUT}' more than once; expected it once. Leave out the others.")
    texts: list[str] = []
    for value in values:
        found = [value]
        if value == _INPUT:
            if sys.stdin.isatty():
                print("One per line; end with Ctrl-D.", file=sys.stderr)
            found = _lines(sys.stdin.buffer.read(), "standard input", option)
        elif value.startswith("@"):
            found = _lines(_content(Path(value[1:]), option), value[1:], option)
        texts += found
    return texts


def _content(path: Path, option: str) -> bytes:
    if not path.is_file():
        raise MissingFileError(
            f"{option} is '@{path}', and there is no such file; expected one with a text per line. Check the path, or "
            "put a text that begins with @ into a file."
        )
    return path.read_bytes()


def _lines(content: bytes, source: str, option: str) -> list[str]:
    try:
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{option}: {source} is not UTF-8; expected text. Convert it.") from error
    texts = [line for line in lines if line]
    if not texts:
        raise ArgumentError(f"{option}: {source} is empty; expected a text per line. Put one in.")
    return texts


def format_of(text: str, formats: Sequence[SecretFormat], option: str, which: str) -> SecretFormat:
    """The format among several that a text is a secret of.

    Args:
        text: The secret, which no message shows.
        formats: Those that come into question.
        option: What the text was given by, for messages.
        which: The text in words, such as "number 2".

    Raises:
        SecretError: It is a secret of none.
    """
    for format_ in formats:
        if format_.fits(text):
            return format_
    patterns = " or ".join(repr(format_.pattern) for format_ in formats)
    remedy = "Say with --format what it looks like."
    if len(formats) == 1:
        remedy = f"{_misfit(text, formats[0])}. {remedy}"
    raise SecretError(f"{option} ({which}, not shown) is no text of {patterns}; expected one. {remedy}")


def _misfit(text: str, format: SecretFormat) -> str:
    """Where a text does not fit, without a character of it.

    >>> _misfit("my pin is 12x4", SecretFormat("my pin is ####"))
    'The first 12 characters fit, and the next one does not'
    """
    acceptor = format.acceptor()
    fitting = next(length for length in range(len(text), -1, -1) if acceptor.walk(text[:length]) is not None)
    if fitting == len(text):
        return "It ends too early"
    return f"The first {fitting} characters fit, and the next one does not"


@contextmanager
def unspoken(texts: Sequence[str]) -> Iterator[None]:
    """Errors of ours without these texts in them, whoever raised them."""
    try:
        yield
    except ExposureError as error:
        message = str(error)
        for text in texts:
            message = message.replace(repr(text), "'…'").replace(text, "…")
        if message == str(error):
            raise
        raise type(error)(message) from None


def read_one(value: str, option: str) -> str:
    """As `read_given`, for an option that takes one text."""
    texts = read_given([value], option)
    if len(texts) > 1:
        raise ArgumentError(f"{option} has {len(texts)} lines; expected one. Leave out the others.")
    return texts[0]
