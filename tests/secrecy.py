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
    yield from (form for form in forms if len(set(form)) > 2)  # a row of one digit is in every file of numbers


def leaked(content: str | bytes, secrets: Iterable[Secret], *, shortest: int = 4) -> set[str]:
    """The secrets that can be read in some content.

    Args:
        content: A text, or the bytes of a file, in which texts are in UTF-8 or in UTF-16.
        secrets: What to look for.
        shortest: Spellings of fewer characters prove nothing: they are somewhere in every large file.
    """

    def is_there(form: str) -> bool:
        if isinstance(content, str):
            return form in content
        return form.encode() in content or form.encode("utf-16-le") in content

    return {
        text
        for text, format in secrets
        if any(is_there(form) for form in spellings(text, format) if len(form) >= shortest)
    }


def is_private(path: Path) -> bool:
    """Whether nobody but the owner may read or write a file."""
    return stat.S_IMODE(os.stat(path).st_mode) == 0o600
