"""Checking arguments once, with messages that say how to do better."""

from __future__ import annotations

import operator
import re
import unicodedata

from lightning_exposure.errors import ArgumentError

SAFE_NAME = re.compile(r"[a-z0-9._-]+")
"""What may be part of a metric's name: survives loggers, file names and web addresses."""


class OutOfRangeError(ArgumentError, IndexError):
    """A position past the end, for callers that catch `IndexError`."""


class UnknownIdError(ArgumentError, KeyError):
    """An identifier that is not there, for callers that catch `KeyError`."""

    # KeyError would show the message in quotes, as if it were the missing key.
    __str__ = Exception.__str__


def whole_number(value: object, argument: str, *, minimum: int | None = None) -> int:
    """Return `value` as an `int`, or say which `argument` is not one.

    Numpy integers count as integers; `True` and `4.0` do not, because they are usually a mistake.

    >>> whole_number(3, "n", minimum=0)
    3
    >>> whole_number(-3, "n", minimum=0)
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: n=-3: expected an integer of at least 0.
    """
    expected = "an integer" if minimum is None else f"an integer of at least {minimum}"
    if isinstance(value, bool):
        raise ArgumentError(f"{argument}={value!r}: expected {expected}, got a truth value.")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(
            f"{argument}={value!r}: expected {expected}, got {type(value).__name__}; convert it with int()."
        ) from None
    if minimum is not None and number < minimum:
        raise ArgumentError(f"{argument}={number}: expected {expected}.")
    return number


def slug(text: str, *, limit: int = 40) -> str:
    """Return a readable name made of the letters and digits of `text`, or "secret" if there are none.

    >>> slug("My SSN is: ")
    'my-ssn-is'
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return words[:limit].strip("-") or "secret"
