"""Where a text comes from: a file, or the text that every Python brings along."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from lightning_exposure.errors import DataError


@cache
def python_topics() -> str:
    """About half a megabyte of English: the reference topics that come with Python's own `help()`.

    The text differs a little from one Python version to the next.

    >>> 300_000 < len(python_topics()) < 1_000_000
    True
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | os.PathLike[str], argument: str = "text_or_path") -> str:
    r"""Read a text file in UTF-8, with line breaks as ``\n`` and without a byte order mark.

    Args:
        path: Of the file.
        argument: What an error calls it.

    Raises:
        DataError: There is no such file, or it is empty, binary or in another encoding; names the path.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(
            f"{argument} is {str(path)!r}, which cannot be read ({error.strerror}); expected the path of a UTF-8 "
            "text file. Check the path."
        ) from error
    if b"\0" in content:
        raise DataError(f"{argument} is {str(path)!r}, a binary file; expected a UTF-8 text file. Check the path.")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{argument} is {str(path)!r}, which is not UTF-8 (byte {error.start} is {content[error.start]:#04x}); "
            "expected a UTF-8 text file. Convert it, for example with iconv -t utf-8."
        ) from error
    if not text.strip():
        raise DataError(f"{argument} is {str(path)!r}, an empty file; expected words in it. Check the path.")
    return text
