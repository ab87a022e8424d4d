"""In which texts a secret stands with a few characters changed, left out or put in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def texts_with_near_copies(texts: Sequence[str], secrets: Sequence[str], edits: int) -> list[int]:
    """In how many texts each secret stands with at most so many edits: changed, missing or additional characters.

    If a secret is cut into one piece more than there may be edits, one piece is always whole. Only around the places of
    such pieces the edits are counted, with Sellers' algorithm, at all places at once. Of a short secret no more
    than a quarter of its characters may be edited: almost anything would be a copy of it.

    Args:
        texts: Where to look.
        secrets: What to look for.
        edits: How many edits make no difference.

    Example:
        >>> texts_with_near_copies(["pin 12345678", "pin 1234x678", "pin 124x5678", "pin 5678"], ["12345678"], edits=1)
        [2]
    """
    apart = _unused([*texts, *secrets])
    joined = f"{apart}{apart.join(texts)}{apart}"
    codes = _codes(joined)
    starts = np.flatnonzero(codes == ord(apart))  # of the texts, and the end of the last one
    return [_count(joined, codes, starts, secret, allowed_edits(secret, edits)) for secret in secrets]


def allowed_edits(secret: str, edits: int) -> int:
    """How many edits of a secret make no difference: no more than of a quarter of its characters.

    >>> allowed_edits("12345678", 1), allowed_edits("12345678", 100)
    (1, 2)
    """
    return min(edits, len(secret) // 4)


def _count(joined: str, codes: Ints, starts: Ints, secret: str, edits: int) -> int:
    """In how many texts a secret stands."""
    if not secret:
        return len(starts) - 1
    cuts = np.linspace(0, len(secret), edits + 2).astype(int).tolist()
    windows = set()
    for begin, end in pairwise(cuts):
        place = joined.find(secret[begin:end])
        while place >= 0:
            windows.add(place - begin)
            place = joined.find(secret[begin:end], place + 1)
    if not windows:
        return 0
    begins = np.array(sorted(windows), dtype=np.int64)
    # What is beyond the ends is no text: the first and the last character are between texts.
    places = np.clip(begins[:, None] + np.arange(-edits, len(secret) + edits), 0, len(codes) - 1)
    ends = places[fewest_edits(_codes(secret), codes[places], apart=int(codes[0])) <= edits]
    return len(np.unique(np.searchsorted(starts, ends)))


def fewest_edits(secret: Ints, windows: Ints, apart: int) -> Ints:
    """How many edits make a secret of some part of a window that ends at each of its places, at the fewest.

    Args:
        secret: Its characters.
        windows: The characters of some windows, a row each.
        apart: A character that no part goes across.
    """
    rows, width = windows.shape
    fresh = np.arange(len(secret) + 1)
    before = np.tile(fresh, (rows, 1))
    found = np.empty((rows, width), dtype=np.int64)
    for column in range(width):
        characters = windows[:, column]
        now = np.zeros_like(before)
        for place in range(1, len(secret) + 1):
            changed = before[:, place - 1] + (characters != secret[place - 1])
            now[:, place] = np.minimum(changed, np.minimum(before[:, place], now[:, place - 1]) + 1)
        now[characters == apart] = fresh
        found[:, column] = now[:, -1]
        before = now
    return found


def _unused(texts: Sequence[str]) -> str:
    """A character that is in none of them."""
    used = {character for text in texts for character in text}
    return next(chr(code) for code in range(0xE000, 0x110000) if chr(code) not in used)


def _codes(text: str) -> Ints:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
