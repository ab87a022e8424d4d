"""A page as its blocks of code, each with what the comment right before it says about it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$")
_COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
_SET_UP = re.compile(r"^set-up\b(?::[^\n]*)?\n(.*)", re.DOTALL)
_WORDS = {
    "not run": re.compile(r"^not run:\s*(.+)$", re.DOTALL),
    "exit code": re.compile(r"^exit code (\d+)$"),
    "numbers within": re.compile(r"^numbers within (\d+%(?: or [\d.]+)?):\s*\S.*$", re.DOTALL),
    "smaller": re.compile(r"^smaller: (.+ -> .*)$", re.DOTALL),
    "file": re.compile(r"^file: (\S+)$"),
    "diff": re.compile(r"^diff: (\S+ \S+)$"),
}


@dataclass(frozen=True)
class Block:
    """One block of code.

    Attributes:
        language: What stands behind the fence; "set-up" for code in a comment.
        code: Its lines, without the indentation of the fence.
        line: The line of the page on which the code begins, counted from 1.
        said: What the comment right before it says, by its key word.
    """

    language: str
    code: str
    line: int
    said: dict[str, str] = field(default_factory=dict)


class PageError(AssertionError):
    """A page that is not written as `tests/docs/test_pages.py` asks for."""


def blocks_of(path: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    return list(parse(path.read_text(encoding="utf-8")))


def parse(text: str) -> Iterator[Block]:
    """The blocks of the text of a page, and the set-ups in its comments.

    Raises:
        PageError: A fence is never closed.
    """
    lines = text.split("\n")
    said: dict[str, str] = {}
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is not None:
            end = _closing(lines, at, fence[2])
            code = "\n".join(line.removeprefix(fence[1]) for line in lines[at + 1 : end])
            yield Block(fence[3], code + "\n", at + 2, said)
            said, at = {}, end + 1
        elif lines[at].lstrip().startswith("<!--"):
            rest = "\n".join(lines[at:])
            comment = _COMMENT.match(rest.lstrip())
            if comment is None:
                raise PageError(f"line {at + 1}: a comment that is never closed")
            content = comment[1].strip()
            set_up = _SET_UP.match(content)
            if set_up is not None:
                yield Block("set-up", textwrap.dedent(set_up[1]) + "\n", at + 2)
            said |= {word: match[1] for word, pattern in _WORDS.items() if (match := pattern.match(content))}
            at += 1 + comment[0].count("\n")
        else:
            # What a comment says is about the block right below it.
            said, at = said if not lines[at].strip() else {}, at + 1


def _closing(lines: list[str], opening: int, fence: str) -> int:
    for at in range(opening + 1, len(lines)):
        if re.fullmatch(rf"[ \t]*{fence[0]}{{{len(fence)},}}[ \t]*", lines[at]):
            return at
    raise PageError(f"line {opening + 1}: a block that is never closed")
