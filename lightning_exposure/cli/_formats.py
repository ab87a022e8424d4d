"""`--format`: a name, a pattern or a regular expression."""

from __future__ import annotations

import difflib
from argparse import ArgumentParser

from lightning_exposure._checks import instance, refusal
from lightning_exposure.secrets import NAMED_FORMATS, SecretFormat

_BLANKS = "#?{"
_REGEX = "regex:"


def format_help() -> str:
    """What can be given, names included."""
    return (
        f"a name ({', '.join(NAMED_FORMATS.names())}), a pattern such as 'my code is ####' ('#' is a digit, '?' a "
        f"lower-case letter), or '{_REGEX}password: [a-z]{{6}}'"
    )


def add_format_option(parser: ArgumentParser) -> None:
    """`--format`, once."""
    words = f"what a secret looks like, instead of the canaries: {format_help()}"
    parser.add_argument("--format", metavar="FORMAT", help=words.replace("%", "%%"))


def make_format(given: str) -> SecretFormat:
    """The format that a name, a pattern or a regular expression stands for.

    A pattern has a blank, and a name has none; a name that is registered goes first whatever it looks like.

    Raises:
        ArgumentError: It is no name, and it has no blank.
        FormatError: The pattern or the expression makes no format.

    Example:
        >>> make_format("door ####").size, make_format("pin").size, make_format("regex:door [0-9]{2}").size
        (10000, 10000, 100)
        >>> make_format("pim")
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.ArgumentError: --format is 'pim'; expected ... Did you mean 'pin'?
    """
    if given in NAMED_FORMATS:
        made = NAMED_FORMATS.get(given)()
        return instance(f"the format {given!r}", made, SecretFormat, "a SecretFormat", "Correct what is registered.")
    if given.startswith(_REGEX):
        return SecretFormat.regex(given.removeprefix(_REGEX))
    if any(blank in given for blank in _BLANKS):
        return SecretFormat(given)
    near = difflib.get_close_matches(given, NAMED_FORMATS.names(), n=1)
    remedy = f"Did you mean {near[0]!r}?" if near else "Put a blank into it: '#' or '?'."
    raise refusal("--format", given, format_help(), remedy)
