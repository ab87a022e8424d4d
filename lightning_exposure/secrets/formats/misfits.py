"""What is wrong with a text that is no secret of a format, said without quoting it: it may nearly be one."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_exposure.secrets.formats.acceptor import Acceptor
from lightning_exposure.secrets.formats.pattern import DIGITS, LETTERS


def misfit(acceptor: Acceptor, text: str) -> str:
    """Where a text does not fit, what kind of character stands there, and what was expected.

    What was expected is told only where it does not depend on what stands before it, which would tell that.

    Args:
        acceptor: Of the format.
        text: That does not fit.

    Example:
        >>> from lightning_exposure.secrets import SecretFormat
        >>> misfit(SecretFormat.pin().acceptor(), "my pin is 12a4")
        'position 12 is a lower-case letter, where a digit (0-9) was expected'
    """
    fits = 0
    while fits < len(text) and acceptor.walk(text[: fits + 1]) is not None:
        fits += 1
    state = acceptor.walk(text[:fits])
    assert state is not None, "the empty text begins every secret"
    if fits < len(text) and not acceptor.edges(state):
        return f"it goes on too long: the secret is complete before position {fits}"
    expected = _expected(acceptor, fits)
    if fits < len(text):
        return f"position {fits} is {_kind(text[fits])}, where {expected} was expected"
    return f"it ends too early, after {len(text)} characters, where {expected} was expected"


def _expected(acceptor: Acceptor, position: int) -> str:
    """What may stand at a position, whatever stands before it; or that this depends on it."""
    states = {acceptor.start}
    for _ in range(position):
        states = {target for state in states for target in acceptor.edges(state).values()}
    allowed = {frozenset(acceptor.edges(state)) for state in states}
    end = " or the end of the text" if all(map(acceptor.accepting, states)) else ""
    if len(allowed) == 1:
        return describe_characters(next(iter(allowed))) + end
    together = frozenset[str]().union(*allowed)
    return ("another digit" if together <= set(DIGITS) else "another character") + end


def _kind(character: str) -> str:
    """A character, unless it could be one of a secret.

    >>> _kind("7"), _kind("a"), _kind("Q"), _kind("+")
    ('a digit', 'a lower-case letter', 'an upper-case letter', "'+'")
    """
    if not character.isascii():
        return "a character that is not ASCII"
    if character.isdigit():
        return "a digit"
    if character.isalpha():
        return "an upper-case letter" if character.isupper() else "a lower-case letter"
    return repr(character)


def describe_characters(characters: Iterable[str], *, limit: int = 12) -> str:
    """Say what a set of characters is, in few words.

    >>> describe_characters("0123456789-")
    "a digit (0-9), or '-'"
    """
    rest = set(characters)
    parts = []
    for name, group in (("a digit (0-9)", DIGITS), ("a lower-case letter (a-z)", LETTERS)):
        if rest.issuperset(group):
            parts.append(name)
            rest.difference_update(group)
    shown = sorted(rest)
    parts += [repr(character) for character in shown[:limit]]
    if len(shown) > limit:
        parts.append(f"one of {len(shown) - limit} more characters")
    if len(parts) > 1:
        parts[-1] = f"or {parts[-1]}"
    return ", ".join(parts)
