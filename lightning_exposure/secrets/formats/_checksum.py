"""The Luhn checksum of credit card numbers: every second digit doubled, the sum a multiple of ten."""

from __future__ import annotations

from collections.abc import Sequence

CHECKSUMS = ("luhn",)


def luhn_term(digit: int, places_after: int) -> int:
    """Return what a digit adds to the Luhn sum, given how many digits follow it.

    For either parity this is a permutation of 0-9 modulo 10, so any one digit can complete the whole sum.
    """
    if places_after % 2 == 0:
        return digit
    doubled = 2 * digit
    return doubled - 9 if doubled > 9 else doubled


def luhn_check_digit(digits: Sequence[int]) -> int:
    """Return the digit that has to follow `digits`.

    >>> luhn_check_digit([7, 9, 9, 2, 7, 3, 9, 8, 7, 1])
    3
    """
    total = sum(luhn_term(digit, len(digits) - place) for place, digit in enumerate(digits))
    return -total % 10
