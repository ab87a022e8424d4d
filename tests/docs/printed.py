"""Is what a page says was printed what was printed?"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Nothing else may differ between two runs on one machine: how long something took, when it was, and the name of a
# masked secret, whose key is another one on every machine.
_SECONDS = re.compile(r"\b\d[\d,]*(?:\.\d+)?(?= ?(?:s|ms|seconds|minutes)\b)")
_MOMENT = re.compile(r"\b\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?(?: UTC|Z)?)?")
_MASKED = re.compile(r"(?<=-)[0-9a-f]{10}\b")
Allowed = tuple[float, float]
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def difference(said: str, printed: str, percent: float = 0.0, bits: float = 0.0) -> str | None:
    """What differs, or None.

    Args:
        said: What the page shows. A line `...` stands for any number of lines.
        printed: What was printed.
        percent: By how much a number may differ, for what was trained: another processor adds up in another order.
        bits: Or by this much, whatever its size.
    """
    wanted, found, allowed = _lines(said), _lines(printed), (percent / 100, bits)
    pieces: list[list[str]] = [[]]
    for line in wanted:
        if line == "...":
            pieces.append([])
        else:
            pieces[-1].append(line)
    first, *later = pieces
    if not _equal(first, found[: len(first)], allowed) or (not later and len(found) != len(first)):
        return _shown(wanted, found)
    at = len(first)
    for number, piece in enumerate(later, 1):
        last = number == len(later)
        starts = [len(found) - len(piece)] if last and piece else range(at, len(found) - len(piece) + 1)
        at = next((start for start in starts if start >= at and _equal(piece, found[start:], allowed)), -1)
        if at < 0:
            return _shown(wanted, found)
        at += len(piece)
    return None


def _lines(text: str) -> list[str]:
    """The lines without what may differ. Columns move with the width of what is in them, so spaces count as one."""
    lines = [_MASKED.sub("MASKED", _MOMENT.sub("MOMENT", _SECONDS.sub("N", line))) for line in text.splitlines()]
    lines = [re.sub(r"\s+", " ", re.sub(r"(?<!\S)-{3,}(?!\S)", "---", line)).strip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _equal(wanted: Sequence[str], found: Sequence[str], allowed: Allowed) -> bool:
    return len(found) >= len(wanted) and all(_same(line, other, allowed) for line, other in zip(wanted, found))  # noqa: B905


def _same(wanted: str, found: str, allowed: Allowed) -> bool:
    if wanted == found:
        return True
    if not any(allowed) or _NUMBER.split(wanted) != _NUMBER.split(found):
        return False
    pairs = zip(_NUMBER.findall(wanted), _NUMBER.findall(found), strict=True)
    return all(_near(number, other, allowed) for number, other in pairs)


def _near(wanted: str, found: str, allowed: Allowed) -> bool:
    one, other = (float(number.replace(",", "")) for number in (wanted, found))
    decimals = len(wanted.partition(".")[2]) if "e" not in wanted else 0
    last_digit = 10.0**-decimals if "." in wanted and "e" not in wanted else 0.0
    return abs(one - other) <= max(last_digit * 1.01, allowed[1], allowed[0] * max(abs(one), abs(other)))


def _shown(wanted: Sequence[str], found: Sequence[str]) -> str:
    return "\n".join(["the page says:", *wanted, "", "printed was:", *found])
