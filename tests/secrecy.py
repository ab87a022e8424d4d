"""Looking for secrets where none may be: in whatever spelling they could have got there."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from lightning_exposure.secrets import SecretFormat

Secret = tuple[str, SecretFormat]


def spellings(text: str, format: SecretFormat) -> Iterator[str]:
    """A secret as it could be written: all of it, behind its prompt, blank by blank, without separators, escaped."""
    behind = text.removeprefix(format.prompt)
    blanks = [blank for blank in format.fillings(text) if blank]
    digits, letters = re.sub(r"\D", "", behind), re.sub(r"\W", "", behind)
    forms = {text, behind, behind.strip(), "".join(blanks), " ".join(blanks), digits, letters}
    # A single word of a list stands in the list itself; a long number that fills the blanks stands nowhere else.
    forms |= {part for part in re.findall(r"\w+", behind) if re.search(r"\d", part)}
    for form in list(forms):
        forms |= {json.dumps(form)[1:-1], repr(form)[1:-1], form.replace("\n", "\\\\n"), form.replace("\n", "<br>")}
    yield from (form for form in forms if len(form) >= 4)


def leaked(content: str | bytes, secrets: Iterable[Secret]) -> set[str]:
    """The secrets that can be read in some content."""
    found = set()
    for text, format in secrets:
        for form in spellings(text, format):
            raw = form.encode()
            is_there = form in content if isinstance(content, str) else raw in content or _wide(form) in content
            if is_there:
                found.add(text)
    return found


def _wide(form: str) -> bytes:
    return form.encode("utf-16-le")


def files_below(directory: Path) -> list[Path]:
    """All files, however deep."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def is_private(path: Path) -> bool:
    """Whether nobody but the owner may read or write a file."""
    return stat.S_IMODE(os.stat(path).st_mode) == 0o600
