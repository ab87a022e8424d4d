"""Days in one way of writing them, numbered: no day of birth is nobody's, so they are permuted among themselves."""

from __future__ import annotations

import re
from datetime import date, timedelta
from functools import lru_cache

from lightning_exposure.secrets.scanner.finding import MONTHS

_FIRST, _LAST = date(1900, 1, 1), date(2029, 12, 31)
_WORD = re.compile(r"[A-Za-z]+")
_ORDINAL = re.compile(r"(\d+)(st|nd|rd|th)", re.IGNORECASE)


def days_like(text: str) -> list[str] | None:
    """All days from 1900 to 2029 as they are written in a text, in order; None: it is no such day.

    >>> days = days_like("12/31/1985")
    >>> len(days), days[0], days_like("3rd of March 1985")[1]
    (28762, '01/13/1900', '2nd of January 1900')
    """
    try:
        days = _named(text) if _month_in(text) else _numbered(text)
    except ValueError:
        return None
    return days if text in days else None


def _month_in(text: str) -> re.Match[str] | None:
    return next((word for word in _WORD.finditer(text) if _month_number(word[0])), None)


def _month_number(word: str) -> int:
    for number, month in enumerate(MONTHS, 1):
        if word.lower() in (month.lower(), month[:3].lower()):
            return number
    return 0


def _all_days() -> list[date]:
    return [_FIRST + timedelta(days=number) for number in range((_LAST - _FIRST).days + 1)]


def _numbered(text: str) -> list[str]:
    """In digits alone: as many of them, in the order of year, month and day in which this one can be read."""
    fields = re.findall(r"\d+", text)
    signs = re.split(r"\d+", text)
    if len(fields) != 3:
        raise ValueError(text)
    return _in_digits(tuple(map(len, fields)), tuple(signs), _readings(tuple(map(int, fields))))


@lru_cache(maxsize=64)
def _in_digits(widths: tuple[int, ...], signs: tuple[str, ...], readings: frozenset[str]) -> list[str]:
    found = set()
    for day in _all_days():
        for order in readings:
            fields = tuple({"y": day.year, "m": day.month, "d": day.day}[part] for part in order)
            if _readings(fields) == readings:
                written = [f"{field:0{width}d}" for field, width in zip(fields, widths, strict=True)]
                if tuple(map(len, written)) == widths:
                    found.add("".join(sign + field for sign, field in zip(signs, [*written, ""], strict=True)))
    return sorted(found)


def _readings(fields: tuple[int, ...]) -> frozenset[str]:
    """The orders of year, month and day in which three numbers are a day."""
    found = set()
    for order in ("ymd",) if fields[0] > 31 else ("mdy", "dmy"):
        parts = dict(zip(order, fields, strict=True))
        try:
            date(parts["y"], parts["m"], parts["d"])
        except ValueError:
            continue
        found.add(order)
    return frozenset(found)


def _named(text: str) -> list[str]:
    """With the name of the month."""
    month = _month_in(text)
    assert month is not None
    numbers = re.findall(r"\d+", text)
    if len(numbers) != 2:
        raise ValueError(text)
    short = len(month[0]) == 3
    marked = _WORD.sub(lambda word: "{m}" if word.start() == month.start() else word[0], text)
    marked = re.sub(r"\d{4}", "{y}", marked)
    ordinal = _ORDINAL.search(marked) is not None
    width = min(map(len, numbers))
    marked = _ORDINAL.sub("{d}", marked) if ordinal else re.sub(r"\b\d{1,2}\b", "{d}", marked)
    return _with_names(marked, width, short, ordinal, month[0])


@lru_cache(maxsize=64)
def _with_names(pattern: str, width: int, short: bool, ordinal: bool, like: str) -> list[str]:
    case = str.upper if like.isupper() else str.lower if like.islower() else str.capitalize
    found = []
    for day in _all_days():
        written = f"{day.day:0{width}d}"
        name = MONTHS[day.month - 1]
        # May is as long as an abbreviation, and stands among those only: one day may not become two.
        if len(written) == width and (short or len(name) > 3):
            suffix = _suffix(day.day) if ordinal else ""
            found.append(pattern.format(y=day.year, m=case(name[:3] if short else name), d=written + suffix))
    return list(dict.fromkeys(found))


def _suffix(day: int) -> str:
    return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
