"""Checking arguments once, with messages of one style: "name is given; expected ... . Remedy."."""

from __future__ import annotations

import difflib
import math
import numbers
import operator
import re
import unicodedata
from collections.abc import Iterable
from typing import TypeVar

from lightning_exposure.errors import ArgumentError, ExposureError

SAFE_NAME = re.compile(r"[a-z0-9._-]+")
"""What may be part of a metric's name: survives loggers, file names and web addresses."""

_LONGEST_SHOWN = 200

_Error = TypeVar("_Error", bound=ExposureError)
_Kind = TypeVar("_Kind")
_Choice = TypeVar("_Choice")


class OutOfRangeError(ArgumentError, IndexError):
    """A position past the end, for callers that catch `IndexError`."""


class UnknownIdError(ArgumentError, KeyError):
    """An identifier that is not there, for callers that catch `KeyError`."""

    # KeyError would show the message in quotes, as if it were the missing key.
    __str__ = Exception.__str__


# ---- the message ------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """A value as a message shows it: what Python would write, cut short if that is a page long.

    >>> shown("1234"), len(shown("1" * 10_000))
    ("'1234'", 200)
    """
    text = repr(value)
    if "\n" in text:  # the modules of PyTorch, which are drawn as trees, and tensors
        text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def refusal(
    name: str,
    value: object,
    expected: str,
    remedy: str = "",
    *,
    error: type[_Error] = ArgumentError,  # type: ignore[assignment]
    with_type: bool = False,
) -> _Error:
    """The error that refuses an argument: what it is called, what was given, what is expected and what to do.

    Args:
        name: The argument, as the caller writes it: `budget`, `repetitions[2]`.
        value: What was given.
        expected: What is expected, without the full stop.
        remedy: Whole sentences that say what to do, if `expected` does not.
        error: The class of the error.
        with_type: Also say of which type the value is.

    Example:
        >>> raise refusal("stop", "soon", "'proof' or 'budget'", "Leave it out.")
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: stop is 'soon'; expected 'proof' or 'budget'. Leave it out.
    """
    kind = f", of type {type(value).__name__}" if with_type else ""
    return error(f"{name} is {shown(value)}{kind}; expected {expected}.{' ' if remedy else ''}{remedy}")


def count_of(number: int, noun: str) -> str:
    """A number with what it is of, in the plural if there is not one.

    >>> count_of(1, "text"), count_of(2000, "text")
    ('1 text', '2,000 texts')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# ---- numbers ----------------------------------------------------------------------------------------------------


def whole_number(name: str, value: object, *, at_least: int | None = None, remedy: str = "") -> int:
    """Return `value` as an `int`, or refuse the argument `name`.

    Numpy integers count as integers; `True` and `4.0` do not, because they are usually a mistake.

    >>> whole_number("n", 3, at_least=0)
    3
    >>> whole_number("n", -3, at_least=0)
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: n is -3; expected an integer of at least 0.
    """
    expected = "an integer" if at_least is None else f"an integer of at least {at_least}"
    if isinstance(value, bool):
        raise refusal(name, value, expected, remedy, with_type=True)
    try:
        whole = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refusal(name, value, expected, remedy or "Convert it with int().", with_type=True) from None
    if at_least is not None and whole < at_least:
        raise refusal(name, whole, expected, remedy)
    return whole


def number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    remedy: str = "",
) -> float:
    """Return `value` as a finite `float` within limits, or refuse the argument `name`.

    Integers and numpy's numbers are numbers; truth values, texts, infinity and NaN are not.

    Args:
        name: The argument, as the caller writes it.
        value: What was given.
        above: It has to be larger than this.
        at_least: It has to be this or larger.
        below: It has to be smaller than this.
        at_most: It has to be this or smaller.
        remedy: A sentence that says what to do instead.

    Example:
        >>> number("dropout", 0.5, at_least=0, below=1)
        0.5
        >>> number("dropout", 1.5, at_least=0, below=1)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: dropout is 1.5; expected a number of at least 0 and below 1.
    """
    limits = {"above": above, "of at least": at_least, "below": below, "of at most": at_most}
    told = " and ".join(f"{words} {limit:g}" for words, limit in limits.items() if limit is not None)
    expected = f"a number {told}" if told else "a finite number"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refusal(name, value, expected, remedy, with_type=True)
    given = float(value)
    within = (
        math.isfinite(given)
        and (above is None or given > above)
        and (at_least is None or given >= at_least)
        and (below is None or given < below)
        and (at_most is None or given <= at_most)
    )
    if not within:
        raise refusal(name, value, expected, remedy)
    return given


def probability(name: str, value: object, *, remedy: str = "") -> float:
    """Return `value` as a `float` from 0 to 1, both included, or refuse the argument `name`; also for shares.

    >>> probability("share", 1)
    1.0
    >>> probability("share", 20)
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: share is 20; expected a number of at least 0 and of at most 1.
    """
    return number(name, value, at_least=0, at_most=1, remedy=remedy)


def check_confidence(confidence: object) -> float:
    """Return a level of confidence, which lies strictly between 0 and 1.

    >>> check_confidence(95)
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: confidence is 95; expected a number above 0 and below 1. For example 0.95.
    """
    return number("confidence", confidence, above=0, below=1, remedy="For example 0.95.")


def check_delta(delta: object, *, pure: bool = False) -> float:
    """Return the delta of differential privacy: a number above 0 and below 1.

    Args:
        delta: What was given.
        pure: Whether 0, pure differential privacy, makes sense: it does for what an audit proves, and not for the
            epsilon of training with Gaussian noise, which is infinite then.

    Example:
        >>> check_delta(1e-6), check_delta(0, pure=True)
        (1e-06, 0.0)
        >>> check_delta(0.0)
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: delta is 0.0; expected a number above 0 and below 1. Choose it well
        below one over the number of records, for example 1e-6.
    """
    remedy = "Choose it well below one over the number of records, for example 1e-6."
    if pure:
        return number("delta", delta, at_least=0, below=1, remedy=remedy)
    return number("delta", delta, above=0, below=1, remedy=remedy)


# ---- everything else --------------------------------------------------------------------------------------------


def choice(name: str, value: object, choices: Iterable[_Choice], *, remedy: str = "") -> _Choice:
    """Return the one of the `choices` that `value` is, or refuse the argument `name` and list them.

    >>> choice("optimizer", "adam", ["adam", "sgd"])
    'adam'
    >>> choice("optimizer", "adan", ["adam", "sgd"])
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: optimizer is 'adan'; expected one of 'adam', 'sgd'. Did you mean 'adam'?
    """
    listed = list(choices)
    for possible in listed:
        # 1 is equal to True, and to 1.0, but neither of them is the choice 1.
        alike = isinstance(value, type(possible)) and isinstance(value, bool) == isinstance(possible, bool)
        if alike and value == possible:
            return possible
    near = difflib.get_close_matches(str(value), [item for item in listed if isinstance(item, str)], n=1)
    hint = f"Did you mean {near[0]!r}?" if near else ""
    raise refusal(name, value, f"one of {', '.join(map(repr, listed))}", " ".join(filter(None, (hint, remedy))))


def flag(name: str, value: object, *, remedy: str = "") -> bool:
    """Return `value` if it is True or False, or refuse the argument `name`.

    >>> flag("held_out", 1)
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: held_out is 1, of type int; expected True or False.
    """
    return instance(name, value, bool, "True or False", remedy)


def instance(name: str, value: object, kind: type[_Kind], expected: str, remedy: str = "") -> _Kind:
    """Return `value` if it is of a class, or refuse the argument `name`.

    >>> instance("prompt", None, str, "the text before the secret, a string", "Write prompt='' for none.")
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: prompt is None, of type NoneType; expected the text before the secret, a
    string. Write prompt='' for none.
    """
    if not isinstance(value, kind):
        raise refusal(name, value, expected, remedy, with_type=True)
    return value


def metric_name(name: object) -> str:
    """Return the first part of metrics' names, the argument `name`, if it is a text that is not empty.

    >>> metric_name("")
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: name is ''; expected the first part of the metrics' names, a text. For
    example 'exposure'.
    """
    if not isinstance(name, str) or not name:
        raise refusal("name", name, "the first part of the metrics' names, a text", "For example 'exposure'.")
    return name


def check_texts(name: str, value: object) -> None:
    """Refuse one text where a list of texts is expected: its characters would be taken for texts.

    >>> check_texts("secrets", "pin 1234")
    Traceback (most recent call last):
    ...
    lightning_exposure.errors.ArgumentError: secrets is 'pin 1234'; expected a list of texts. Write ['pin 1234'].
    """
    if isinstance(value, str):
        raise refusal(name, value, "a list of texts", f"Write [{shown(value)}].")


def slug(text: str, *, limit: int = 40) -> str:
    """Return a readable name made of the letters and digits of `text`, or "secret" if there are none.

    >>> slug("My SSN is: ")
    'my-ssn-is'
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return words[:limit].strip("-") or "secret"
