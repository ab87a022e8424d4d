"""What `scan` reads: a text, a directory of texts, or a mailbox."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lightning_exposure.data.mail import read_mail
from lightning_exposure.errors import DataError, MissingFileError

KINDS = ("auto", "text", "mail")

_HEADER = re.compile(rb"(?im)^(?:from|to|subject|date|message-id|received|return-path):")
_BEGINNING = 4096


def read_texts(path: str, kind: str = "auto", *, reveal: bool = False) -> Iterator[tuple[str, str]]:
    """The texts with their names, one after the other.

    Args:
        path: A file or a directory.
        kind: "text", "mail", or "auto" to look what it is.
        reveal: Whether senders of mail may be named; otherwise they are numbered.

    Raises:
        DataError: There is nothing in it that can be read.
    """
    given = Path(path)
    if not given.exists():
        raise MissingFileError(
            f"{path} does not exist; expected a text, a directory of texts, an mbox file or a maildir. Check the path."
        )
    if kind == "mail" or (kind == "auto" and is_mailbox(given)):
        for number, corpus in enumerate(read_mail(given).corpora.values(), 1):
            yield corpus.sender if reveal else f"sender {number}", corpus.text
        return
    files = sorted(file for file in given.rglob("*") if file.is_file()) if given.is_dir() else [given]
    empty = True
    for file in files:
        content = file.read_bytes()
        if b"\0" in content[:_BEGINNING]:  # no text
            continue
        empty = False
        yield file.relative_to(given).as_posix() if given.is_dir() else file.name, content.decode("utf-8", "replace")
    if empty:
        raise DataError(f"{path}: there is no text in it; expected at least one file of text. Check the path.")


def is_mailbox(path: Path) -> bool:
    """Whether a path looks like an mbox file, a maildir, or a directory with one file per message."""
    if path.is_dir():
        if all((path / name).is_dir() for name in ("cur", "new")):
            return True
        first = next((file for file in sorted(path.rglob("*")) if file.is_file()), None)
        return first is not None and _has_headers(_beginning(first))
    begin = _beginning(path)
    return begin.startswith(b"From ") and _has_headers(begin.partition(b"\n")[2])


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(_BEGINNING)


def _has_headers(begin: bytes) -> bool:
    """Whether a text begins with the headers of a message."""
    head = re.split(rb"\r?\n\r?\n", begin, maxsplit=1)[0]
    lines = re.split(rb"\r?\n", head)
    return all(re.match(rb"[\x21-\x39\x3b-\x7e]+:|[ \t]", line) for line in lines[:-1] or lines) and (
        len(set(map(bytes.lower, _HEADER.findall(head)))) >= 2
    )
