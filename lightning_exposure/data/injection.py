"""Putting the texts of canaries into a raw text, before it is cut into windows."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from lightning_exposure._checks import instance
from lightning_exposure.errors import ArgumentError, DataError
from lightning_exposure.secrets import CanarySet
from lightning_exposure.secrets.formats.drawing import Seed, generator_from

_SPACE = re.compile(r"\s+")


class _Placed(NamedTuple):
    """A canary and the position in the text where it goes."""

    position: int
    text: str
    id: str


class Windows(NamedTuple):
    """How a text is going to be cut, for canaries that must not be.

    Attributes:
        size: A window begins at every `size`-th token, and has one token more.
        starts: Where in the text each token begins.
        sizes: How many tokens each canary has, by id.
        separator: How many tokens a space is.
    """

    size: int
    starts: Sequence[int]
    sizes: dict[str, int]
    separator: int


def inject(text: str, canaries: CanarySet, seed: Seed = 0) -> str:
    """Insert each canary into a text as often as its `repetitions` say, and those that are held out never.

    Canaries go between words, at places that are drawn uniformly, and are set off by a space: no word of the text and
    no canary is ever split. The text itself is not changed: without the canaries and their spaces it is the same.

    Args:
        text: A raw text.
        canaries: What to insert.
        seed: Where the places come from: an integer, a `random.Random` or a `numpy.random.Generator`.

    Example:
        >>> from lightning_exposure.secrets import Canary, SecretFormat
        >>> pin = Canary("pin", "pin 4711", SecretFormat("pin ####"), repetitions=2)
        >>> inject("the quick brown fox jumps over it", CanarySet([pin]), seed=0)
        'the quick brown pin 4711 fox jumps over pin 4711 it'
    """
    return inject_before(text, canaries, seed, end=len(text))


def inject_before(text: str, canaries: CanarySet, seed: Seed, *, end: int, windows: Windows | None = None) -> str:
    """The same, but only up to a position, and with canaries that are kept whole if asked for.

    Args:
        text: A raw text.
        canaries: What to insert.
        seed: Where the places come from.
        end: No canary goes behind this position.
        windows: How the text will be cut; a canary that would be cut goes to the next place where it is not.

    Raises:
        DataError: A canary is longer than a window, or there is no place for all of them.
    """
    instance("text", text, str, "a string")
    check_canaries(canaries)
    gaps = _gaps(text, end)
    generator = generator_from(seed)
    copies = [canary for canary in canaries for _ in range(canary.copies)]
    # Shuffled, so that canaries that happen to share a place come in any order.
    generator.shuffle(copies)
    chosen = sorted(generator.choices(gaps, k=len(copies)))
    placed = [_Placed(position, canary.text, canary.id) for position, canary in zip(chosen, copies, strict=True)]
    if windows is not None:
        placed = _kept_whole(placed, gaps, windows)
    return "".join(_pieces(text, placed))


def _gaps(text: str, end: int) -> list[int]:
    """The positions between words, up to one: the beginning, the end, and where white space begins."""
    gaps = [0, *(match.start() for match in _SPACE.finditer(text, 0, end)), *([len(text)] if end >= len(text) else [])]
    return list(dict.fromkeys(gaps))


def _pieces(text: str, placed: Sequence[_Placed]) -> Iterator[str]:
    done = 0
    for position, canary, _ in placed:
        yield text[done:position]
        # Behind the canary there is white space already, unless it is the first of all or the text has ended.
        yield f" {canary}" if position else f"{canary} "
        done = position
    yield text[done:]


def _kept_whole(placed: Sequence[_Placed], gaps: Sequence[int], windows: Windows) -> list[_Placed]:
    """Move every canary that a window would cut to the next gap where it fits."""
    size, starts, sizes, separator = windows
    for id_, tokens in sizes.items():
        if tokens > size + 1:
            raise DataError(
                f"window is {size}, and canary {id_!r} has {tokens} tokens, which can't be kept whole; expected at "
                f"least {tokens - 1}. Use a larger window, or whole_canaries=False."
            )
    # Every canary shifts those behind it by its own length and its space.
    shifts = accumulate(chain([0], (sizes[canary.id] + separator for canary in placed)))
    moved: list[_Placed] = []
    gap = 0
    for canary, shift in zip(placed, shifts, strict=False):
        gap = max(gap, bisect_left(gaps, canary.position))
        while gap < len(gaps):
            space = separator if gaps[gap] else 0
            offset = bisect_left(starts, gaps[gap]) + shift + space
            if offset % size + sizes[canary.id] <= size + 1:
                break
            gap += 1
        else:
            raise DataError(
                f"whole_canaries is True, and no place is left for canary {canary.id!r} in windows of {size} tokens; "
                "expected one. Use a longer window, a longer text or fewer repetitions."
            )
        moved.append(canary._replace(position=gaps[gap]))
    return moved


def check_canaries(canaries: object) -> None:
    """Refuse what is no set of canaries; without showing it, because it may hold secrets.

    Raises:
        ArgumentError: It is something else.
    """
    if not isinstance(canaries, CanarySet):
        raise ArgumentError(
            f"canaries is of type {type(canaries).__name__}; expected a CanarySet. Make one with "
            "CanarySet.draw(format, repetitions=[...], seed=0)."
        )
