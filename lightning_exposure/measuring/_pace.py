"""How much a measurement may cost: at most a share of the training since the one before it.

The decision is a pure function of numbers. The same number can always be computed again from what was decided, which
every `Measurement` records; while nothing is cut, no clock has a say in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_exposure._checks import number

NEVER_CUT = 5.0
"""Seconds: a measurement that is expected to take no longer is never cut."""

_FEWEST_SAMPLES = 64
"""Fewer walks say next to nothing, and a skew-normal distribution cannot be fitted to them."""

_FEWEST_EXPANSIONS = 100


@dataclass(frozen=True)
class Effort:
    """What a measurement took.

    Attributes:
        expansions: How many nodes the model read, in all formats together.
        seconds: How long that took.
        cut: Whether it would have taken more.
    """

    expansions: int
    seconds: float
    cut: bool = False


@dataclass(frozen=True)
class Caps:
    """What a measurement may take.

    Attributes:
        method: As for `measure_exposure`.
        samples: The largest number of walks.
        budget: The largest number of expansions of an exact count.
        cut: Whether this is less than was asked for.
        expected: How many seconds all that was asked for is expected to take; None: nothing is known yet.
    """

    method: str
    samples: int
    budget: int
    cut: bool = False
    expected: float | None = None


def speed(efforts: Sequence[Effort]) -> float | None:
    """Expansions per second, over all measurements so far; None if there was none.

    >>> speed([Effort(100, 1.0), Effort(300, 1.0)]), speed([])
    (200.0, None)
    """
    seconds = sum(effort.seconds for effort in efforts)
    expansions = sum(effort.expansions for effort in efforts)
    return expansions / seconds if seconds > 0 and expansions > 0 else None


def caps_for(
    asked: Caps,
    depths: Sequence[int],
    efforts: Sequence[Effort],
    *,
    max_share: float | None,
    training_seconds: float,
    last: bool = False,
) -> Caps:
    """What the next measurement may take.

    It is expected to take as many expansions as the most expensive one so far that was not cut. If that takes longer
    than both `NEVER_CUT` and the share allow, it gets caps that it cannot exceed within the time it has.

    Args:
        asked: What the user allows.
        depths: For each format, how many tokens its longest secret has: a walk takes about as many expansions.
        efforts: The measurements so far.
        max_share: The largest share of the training time; None: any.
        training_seconds: How long the model was trained since the last measurement.
        last: Whether it is the last one of the run, which is never cut.

    Example:
        >>> asked = Caps("auto", samples=4096, budget=100_000)
        >>> slow = [Effort(expansions=80_000, seconds=160.0)]
        >>> caps_for(asked, [10], slow, max_share=0.05, training_seconds=400.0)
        Caps(method='auto', samples=500, budget=5000, cut=True, expected=160.0)
        >>> caps_for(asked, [10], slow, max_share=0.05, training_seconds=4000.0).cut
        False
    """
    per_second = speed(efforts)
    if per_second is None:
        return asked
    walks, formats = sum(depths), len(depths)
    most = asked.samples * walks + asked.budget * formats
    need = max((effort.expansions for effort in efforts if not effort.cut), default=most)
    asked = replace(asked, expected=need / per_second)
    allowed = NEVER_CUT if max_share is None else max(NEVER_CUT, max_share * training_seconds)
    if max_share is None or last or need <= allowed * per_second:
        return asked
    room = int(allowed * per_second)
    # An exact count that does not fit would be an error: an estimate takes its place, until the last measurement.
    method = "auto" if asked.method == "exact" else asked.method
    for_walks = room // 2 if method == "auto" else room
    samples = min(asked.samples, max(_FEWEST_SAMPLES, for_walks // walks))
    budget = min(asked.budget, max(_FEWEST_EXPANSIONS, (room - samples * walks) // formats))
    lower = (samples, budget) != (asked.samples, asked.budget) and (method == "auto" or samples < asked.samples)
    return Caps(method, samples, budget, True, asked.expected) if lower else asked


class Pace:
    """Keeps the time between measurements, and what they took.

    Args:
        max_share: The largest share of the training time that a measurement may take; None: any.
    """

    def __init__(self, max_share: float | None) -> None:
        if max_share is not None:
            number("max_share", max_share, above=0, remedy="For example 0.05 of the training time; None is no limit.")
        self.max_share = max_share
        self.efforts: list[Effort] = []
        self._since = 0.0

    def begin(self, now: float, efforts: Sequence[Effort] = ()) -> None:
        """Begin a training run, perhaps after some measurements.

        Args:
            now: Seconds of training, from some moment on, by a clock that stands still during measurements.
            efforts: What the measurements took that are there already.
        """
        self.efforts = list(efforts)
        self._since = now

    def caps(self, asked: Caps, depths: Sequence[int], now: float, *, last: bool) -> Caps:
        """What the next measurement may take."""
        return caps_for(
            asked, depths, self.efforts, max_share=self.max_share, training_seconds=now - self._since, last=last
        )

    def done(self, effort: Effort, now: float) -> None:
        """A measurement has ended."""
        self.efforts.append(effort)
        self._since = now
