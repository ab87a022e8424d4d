"""Texts of a file, one a line: as they are, or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from lightning_exposure.errors import DataError, MissingFileError

HOW = (
    "one a line, or, in a file that ends in .jsonl, one JSON value a line: a string, or an object with the text "
    "under 'text'"
)


def read_records(path: str, option: str) -> list[str]:
    r"""The texts of a file; lines with nothing but blanks count for nothing.

    Args:
        path: The file.
        option: What it was given by, for messages.

    Raises:
        MissingFileError: There is no such file.
        DataError: It is not UTF-8, not what its name says, or empty.
    """
    given = Path(path)
    if not given.is_file():
        raise MissingFileError(f"{option} is {path!r}, which is no file; expected texts, {HOW}. Check the path.")
    try:
        content = given.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{option} is {path!r}, which is not UTF-8 ({error.reason}); expected texts, {HOW}. Convert it."
        ) from error
    # Not splitlines, which knows more ends of lines than a file has.
    lines = [line.removesuffix("\r") for line in content.split("\n")]
    if given.suffix.lower() == ".jsonl":
        numbered = [(place, line) for place, line in enumerate(lines, 1) if line.strip()]
        texts = [_text(line, f"{option}: {path}, line {place}") for place, line in numbered]
    else:
        texts = [line for line in lines if line.strip()]
    if not any(text.strip() for text in texts):
        raise DataError(f"{option} is {path!r}, which has no text in it; expected texts, {HOW}. Put some in.")
    return texts


def _text(line: str, where: str) -> str:
    """The text of a line of JSON."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON ({error.msg}); expected a string, or an object with 'text'.") from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        kind = "an object without a string under 'text'" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise DataError(f"{where} is {kind}; expected a string, or an object with 'text'. Name the text so.")
    return text
