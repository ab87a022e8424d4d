"""Files that a command is told to write: refused before anything is measured, if something else would be lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_exposure._checks import refusal
from lightning_exposure._files import plain, write_whole
from lightning_exposure.errors import ArgumentError
from lightning_exposure.report.figures.style import require

_PAGES = (".html", ".htm")
_PAGE = "report.html"
"""What a page is called in a directory."""
_BEGINNING = 4096
_GENERATOR = b'<meta name="generator" content="lightning-exposure '


def check_result_file(
    given: str, inputs: Mapping[str, str | None], *, title: str, keys: Collection[str], option: str = "--out"
) -> None:
    """Refuse a file for a page or JSON that cannot be written, or that would take the place of something else.

    An earlier result of the same command may be replaced. Nothing is made or changed here.

    Args:
        given: What the option was given: a file, or a directory that is there, for a page of the usual name.
        inputs: What the command reads, by the options that name it.
        title: How the title of its pages begins.
        keys: Some fields that its JSON has.
        option: What it was given by.

    Raises:
        ArgumentError: It is another file of the user's, or has no ending that says what to write.
        MissingExtraError: It is a page, and what pages need is not installed.
    """
    path = Path(given)
    refuse_inputs(option, given, inputs)
    if path.is_dir():
        path = path / _PAGE
        refuse_inputs(option, str(path), inputs)
    if path.suffix.lower() == ".json":
        check_replaceable(option, path, lambda content: _has_keys(content, keys), "an earlier result in JSON")
    elif path.suffix.lower() in _PAGES:
        check_page_file(option, str(path), title=title)
    else:
        raise refusal(option, given, "a page that ends in .html, JSON that ends in .json, or a directory that is there")


def check_page_file(option: str, given: str, *, title: str = "") -> None:
    """Refuse a file for a page that is none of ours.

    Args:
        option: What it was given by.
        given: The file; a directory is for a page of the usual name in it.
        title: How the title begins of the pages that may be replaced; "": of any of ours.

    Raises:
        ArgumentError: Something else would be lost.
        MissingExtraError: What pages need is not installed.
    """
    path = Path(given)
    if path.is_file() and path.suffix.lower() not in _PAGES:
        raise refusal(option, given, "a page that ends in .html, or a directory", "A file is not overwritten.")
    path = path if path.suffix.lower() in _PAGES and not path.is_dir() else path / _PAGE
    what = "an earlier page of this command" if title else "an earlier page of this program"
    check_replaceable(option, path, lambda content: _is_page(content, title), what)
    require("jinja2")


def write_result(given: str, content: Mapping[str, Any], write_page: Callable[[str], Path], *, private: bool) -> Path:
    """Write JSON or a page, as the ending of a file says.

    Args:
        given: What the option was given; see `check_result_file`.
        content: What JSON holds.
        write_page: Writes a page, and says where.
        private: Whether nobody but its owner may read the JSON.
    """
    if Path(given).suffix.lower() == ".json" and not Path(given).is_dir():
        whole = json.dumps(plain(content, "result"), ensure_ascii=False, indent=1)
        write_whole(given, f"{whole}\n", private=private)
        return Path(given)
    return write_page(given)


def refuse_inputs(option: str, given: str, inputs: Mapping[str, str | None]) -> None:
    """Refuse to write what the command reads.

    Raises:
        ArgumentError: It is one of its inputs, by whatever name.
    """
    for name, other in inputs.items():
        # A directory that is read may be written into; its files are looked at one by one.
        if other is not None and os.path.isfile(given) and os.path.isfile(other) and os.path.samefile(given, other):
            raise ArgumentError(
                f"{option} is {given!r}, which is the file of {name}; expected another one, because that would be "
                "lost. Name a new file."
            )


def check_replaceable(option: str, path: Path, is_ours: Callable[[bytes], bool], what: str) -> None:
    """Refuse a file that is there and is not ours, and one that cannot be written.

    Args:
        option: What it was given by.
        path: The file.
        is_ours: Whether a content is what the same command wrote before.
        what: That in words.

    Raises:
        ArgumentError: It cannot be written, or something would be lost.
    """
    if path.is_dir():
        raise refusal(option, str(path), "a file and not a directory", "Name a file in it.")
    if path.exists() and not _may_be_lost(path, is_ours):
        raise refusal(
            option, str(path), f"a new file, or {what}", "It is there already, and would be lost. Name another one."
        )
    _check_writable(option, path)


def check_appendable(option: str, given: str, inputs: Mapping[str, str | None]) -> None:
    """Refuse a file that is no text to which something may be added.

    Raises:
        ArgumentError: It is one of the inputs, JSON, or something else that would be spoilt; or it cannot be written.
    """
    refuse_inputs(option, given, inputs)
    path = Path(given)
    if path.is_dir():
        raise refusal(option, given, "a file and not a directory", "Name a file in it.")
    if path.is_file() and os.access(path, os.R_OK):
        content = path.read_bytes()
        if b"\0" in content or is_json(content):
            raise refusal(
                option, given, "a text to add to, such as one in Markdown", "It would be spoilt. Name another one."
            )
    if not path.exists():
        _check_writable(option, path)


def _may_be_lost(path: Path, is_ours: Callable[[bytes], bool]) -> bool:
    """Whether a file that is there is one of ours, or empty."""
    if not path.is_file() or not os.access(path, os.R_OK):
        return False
    content = path.read_bytes()
    return not content or is_ours(content)


def _check_writable(option: str, path: Path) -> None:
    """Refuse a file in a directory that is none, or that nothing can be written into."""
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise refusal(
            option,
            str(path),
            f"a file in a directory that can be written into, and {str(parent)!r} is none",
            "Choose another one, or allow writing to it.",
        )


def given_files(texts: Sequence[str] | None) -> list[str]:
    """The files among what an option was given: what stands behind an @."""
    return [text[1:] for text in texts or () if text.startswith("@")]


def is_json(content: bytes) -> bool:
    """Whether a content is an object or a list in JSON."""
    try:
        return isinstance(json.loads(content), dict | list)
    except (ValueError, RecursionError):
        return False


def _has_keys(content: bytes, keys: Collection[str]) -> bool:
    return is_json(content) and isinstance(found := json.loads(content), dict) and set(keys) <= set(found)


def _is_page(content: bytes, title: str) -> bool:
    begin = content[:_BEGINNING]
    return _GENERATOR in begin and f"<title>{title}".encode() in begin
