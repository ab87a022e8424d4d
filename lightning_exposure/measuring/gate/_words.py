"""The answer of a gate in a sentence."""

from __future__ import annotations

from lightning_exposure.measuring.gate._decision import EXCEEDED, WITHIN, GateLook


def in_words(look: GateLook, limit: float, confidence: float, effort: int) -> str:
    """Why a look answered as it did.

    Args:
        look: What it found.
        limit: The largest exposure that is allowed.
        confidence: Of an alarm, over the whole run.
        effort: How many times the usual effort was allowed.

    Example:
        >>> from lightning_exposure.measuring.gate._decision import Bounds
        >>> in_words(GateLook("within", {"ssn-4x": Bounds(1.0, 2.5)}, "ssn-4x"), 10.0, 0.95, 16)
        "the most exposed canary, 'ssn-4x', has at most 2.50 bits, within the limit of 10"
    """
    low, high, certain = look.bounds[look.canary]
    if look.answer == WITHIN:
        bits = _bits(high, limit)
        return f"the most exposed canary, {look.canary!r}, has at most {bits} bits, within the limit of {limit:g}"
    if look.answer == EXCEEDED:
        how = "counted" if certain else f"with {100 * confidence:.4g}% confidence over the whole run"
        bits = _bits(low, limit) if low == high else f"at least {_bits(low, limit)}"
        return f"{look.canary!r} has an exposure of {bits} bits ({how}), above the limit of {limit:g}"
    where = f"between {_bits(low, limit)} and {_bits(high, limit)} bits"
    more = "" if effort == 1 else f", also with up to {effort} times the samples"
    return f"{look.canary!r} has {where}, so that the limit of {limit:g} is neither kept nor exceeded for certain{more}"


def _bits(value: float, limit: float) -> str:
    """With two digits, or with as many as it takes to tell it from the limit.

    >>> _bits(8.0037, 8.0), _bits(7.5, 8.0), _bits(8.0, 8.0)
    ('8.004', '7.50', '8.00')
    """
    digits = 2
    while value != limit and digits < 9 and float(f"{value:.{digits}f}") == limit:
        digits += 1
    return f"{value:.{digits}f}"
