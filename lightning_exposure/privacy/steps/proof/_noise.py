"""Is it noise, and enough of it? Tests of what was added to the clipped sums, over parameters and over steps.

What was added, in units of the standard deviation that was promised to the accountant, must be standard normal numbers,
independent of each other. Every statistic here is exactly normal, chi-square or binomial if they are: where two
vectors are compared, their inner product is divided by the length of one, which leaves a standard normal number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import (
    FALSE_ALARM,
    STOPPED,
    ErrorBudget,
    NormalTotals,
    is_time_to_look,
    of_counts,
    of_normal,
    of_squares,
)
from lightning_exposure.privacy.steps.secure import AnyGenerator, SecureGenerator

NOISE_TESTS = {
    "size": 4,
    "size of a step": 2,
    "size in a parameter": 2,
    "mean": 1,
    "shift of a step": 1,
    "distribution": 2,
    "neighbours": 1,
    "parameters": 1,
    "steps": 2,
}
"""The tests of the noise, and their shares of the error."""

_EDGES = np.array([0.1, 0.5, 0.9, 1.1, 1.5, 1.8, 2.5, 3.5])
_WITHIN = special.erf(_EDGES / np.sqrt(2))
_ROUNDING = 64
"""By how many units in the last place of its parts a sum of a few numbers may be off."""
_VISIBLE = 2e4
"""How many times larger than the noise a number may be for the noise to be still seen beside it."""
AGAIN = 2**18
"""Of how many numbers, at most, the noise is drawn again: some milliseconds."""
_LAGS = 4
_ALIKE = 32

Numbers = NDArray[np.float64]


class NoiseTests:
    """Gathers the noise of all steps, and refuses what is none, or too little.

    Args:
        parameters: Where the numbers of each parameter are.
        budget: Of the error; it has a share for each of `NOISE_TESTS`.
        luck: Draws what stands in for noise that cannot be seen; private.
    """

    def __init__(self, parameters: Sequence[slice], budget: ErrorBudget, luck: np.random.Generator) -> None:
        self._parts = [part for part in parameters if part.stop > part.start]
        self._budget, self._luck = budget, luck
        self.steps = 0
        self._count = 0
        self._squares = self._total = self._shifts = 0.0
        self._within = np.zeros(len(_EDGES), dtype=np.int64)
        self._of_parts = np.zeros(len(self._parts))
        self._alike = NormalTotals()
        self._neighbours: dict[str, NormalTotals] = {}
        self._past: dict[str, NormalTotals] = {}
        self._before: deque[Numbers] = deque(maxlen=_LAGS)
        self._first: Numbers | None = None
        self._sum: Numbers | None = None

    def add(self, sums: Tensor, noisy: Tensor, deviation: float) -> None:
        """Look at a step.

        Args:
            sums: Numbers of the clipped sum, in double precision.
            noisy: The same of what the optimizer stepped along, times what it was divided by.
            deviation: The standard deviation that the noise has.

        Raises:
            FitError: It is not the noise that was asked for.
        """
        if not len(sums) or not deviation:
            return
        noise = ((noisy - sums) / deviation).numpy()
        hidden = sums.abs().numpy() > _VISIBLE * deviation
        noise = np.where(hidden, self._luck.standard_normal(len(noise)), noise)
        self.steps += 1
        self._gather(noise)
        squares = float(noise @ noise)
        if not of_squares(squares, len(noise)) > self._budget.next_share("size of a step"):
            raise _wrong_size(squares, len(noise), 1, deviation)
        if is_time_to_look(self.steps):
            self.look(deviation)

    def look(self, deviation: float) -> None:
        """Look at all steps so far; also after the last one.

        Raises:
            FitError: It is not the noise that was asked for.
        """
        if not self.steps:
            return
        if not of_squares(self._squares, self._count) > self._budget.next_share("size"):
            raise _wrong_size(self._squares, self._count, self.steps, deviation)
        sizes = [part.stop - part.start for part in self._parts]
        each = [of_squares(*pair) for pair in zip(self._of_parts, [size * self.steps for size in sizes], strict=True)]
        if not min(each) * len(each) > self._budget.next_share("size in a parameter"):
            worst = int(np.argmin(each))
            raise _wrong_size(self._of_parts[worst], sizes[worst] * self.steps, self.steps, deviation)
        for test, probability, problem in self._others():
            if not probability > self._budget.next_share(test):
                raise FitError(f"{_NOT_THE_NOISE} over {self._count} numbers of {self.steps} steps {problem} {STOPPED}")

    def _gather(self, noise: Numbers) -> None:
        self._count += len(noise)
        self._squares += float(noise @ noise)
        self._total += float(noise.sum())
        self._shifts += float(noise.sum()) ** 2 / len(noise)
        self._within += (np.abs(noise)[:, None] < _EDGES).sum(0) if len(noise) < 2**12 else _counts(noise)
        self._of_parts += [float(noise[part] @ noise[part]) for part in self._parts]
        half = len(noise) // 2
        pairs = {
            "next": (noise[0 : 2 * half : 2], noise[1 : 2 * half : 2]),
            "halves": (noise[:half], noise[half : 2 * half]),
            "mirrored": (noise[:half], noise[::-1][:half]),
        }
        for name, (one, other) in pairs.items():
            _compare(self._neighbours.setdefault(name, NormalTotals()), one, other)
        for part, following in zip(self._parts, self._parts[1:], strict=False):
            same = min(_ALIKE, part.stop - part.start, following.stop - following.start)
            _compare(self._alike, noise[part][:same], noise[following][:same])
        for lag, before in enumerate(reversed(self._before), 1):
            _compare(self._past.setdefault(f"{lag} before", NormalTotals()), before, noise)
        if self._first is not None and self._sum is not None:
            _compare(self._past.setdefault("the first", NormalTotals()), self._first, noise)
            _compare(self._past.setdefault("all before", NormalTotals()), self._sum, noise)
        self._before.append(noise)
        self._first = noise if self._first is None else self._first
        self._sum = noise if self._sum is None else self._sum + noise

    def _others(self) -> list[tuple[str, float, str]]:
        """Each test but those of the size: its name, how likely what was seen is, and what is wrong."""
        return [
            ("mean", of_normal(self._total / np.sqrt(self._count)), "it has another mean than 0."),
            ("shift of a step", of_squares(self._shifts, self.steps), "all numbers of a step are shifted alike."),
            (
                "distribution",
                of_counts(self._within, self._count, _WITHIN),
                "it has the distribution of something else than normal numbers.",
            ),
            ("neighbours", _of_any(self._neighbours), "numbers of a step go together with others."),
            ("parameters", self._alike.probability(), "parameters get the same noise as others."),
            (
                "steps",
                _of_any(self._past),
                "that of a step goes together with that of steps before, so that it can be told, or cancels out.",
            ),
        ]


def _of_any(totals: Mapping[str, NormalTotals]) -> float:
    """How likely one of several totals, which may depend on each other, is as far out as the one furthest out."""
    return min(1.0, max(1, len(totals)) * min((each.probability() for each in totals.values()), default=1.0))


def _compare(totals: NormalTotals, given: Numbers, new: Numbers) -> None:
    """Take in the inner product of two vectors, in units of what it is if they are independent."""
    length = float(np.sqrt(given @ given))
    if length:
        totals.add(float(given @ new) / length)


def _counts(noise: Numbers) -> Any:
    """How many numbers are within each edge; for many numbers."""
    return np.searchsorted(np.sort(np.abs(noise)), _EDGES)


_NOT_THE_NOISE = "The step's noise is not the one that was asked for:"


def _wrong_size(squares: float, count: int, steps: int, deviation: float, *, unit: float | None = None) -> FitError:
    over = f"{count} numbers" + (f" of {steps} steps" if steps > 1 else "")
    seen = (deviation if unit is None else unit) * (squares / count) ** 0.5
    return FitError(
        f"{_NOT_THE_NOISE} over {over} its standard deviation is {seen:.4g}; expected "
        f"noise_multiplier * max_grad_norm = {deviation:.4g}. Something changed the gradient or the noise. {STOPPED}"
    )


def drawn_again(
    shapes: Sequence[tuple[str, torch.Size]],
    generator: AnyGenerator,
    *,
    deviation: float,
    dtype: torch.dtype = torch.float32,
    limit: int = AGAIN,
) -> dict[str, Tensor]:
    """The noise that a generator gives to the first parameters, drawn as Opacus draws it: normal, one after the other.

    Args:
        shapes: Of the parameters, by name, in the order of the optimizer.
        generator: In the state that the private one had before.
        deviation: The standard deviation.
        dtype: In which precision it is drawn.
        limit: Stop before so many numbers are exceeded.

    Example:
        >>> state = torch.Generator().manual_seed(1)
        >>> {name: noise.shape for name, noise in drawn_again([("a", torch.Size([3]))], state, deviation=1.0).items()}
        {'a': torch.Size([3])}
    """
    found, count = {}, 0
    for name, shape in shapes:
        count += shape.numel()
        if count > limit:
            break
        if isinstance(generator, SecureGenerator):
            found[name] = torch.from_numpy(deviation * generator.normal(shape.numel())).view(shape)
            continue
        found[name] = torch.normal(
            0.0, deviation, size=shape, generator=generator, device=generator.device, dtype=dtype
        )
    return found


def check_again(noise: Tensor, sums: Tensor, noisy: Tensor, *, deviation: float) -> None:
    """Refuse noise that is not the one of the private generator.

    Args:
        noise: What that generator gives.
        sums: The clipped sums.
        noisy: The same with noise.
        deviation: The standard deviation of the noise.

    Raises:
        FitError: It is other noise.
    """
    rounding = _ROUNDING * torch.finfo(torch.float32).eps * (sums.abs() + noise.abs() + deviation)
    if bool(((noisy - sums - noise).abs() <= rounding).all()):
        return
    raise FitError(
        f"{_NOT_THE_NOISE} drawn again from the private generator, it is other noise. Something has changed it, or "
        f"draws it elsewhere. {STOPPED}"
    )


# ---- one step by itself ---------------------------------------------------------------------------------------


def noise_limits(count: int, alarm: float) -> tuple[float, float]:
    """Between which limits the sum of squares of standard normal numbers is, but for a small probability.

    Args:
        count: How many numbers there are.
        alarm: That probability.

    Example:
        >>> low, high = noise_limits(1000, 1e-9)
        >>> 700 < low < 1000 < high < 1350
        True
    """
    return float(stats.chi2.ppf(alarm / 2, count)), float(stats.chi2.isf(alarm / 2, count))


def check_noise(sums: Sequence[Tensor], gradients: Sequence[Tensor], *, scale: float, deviation: float) -> None:
    """Refuse a step whose gradient is not the clipped sum with noise of the right size.

    Every parameter is looked at by itself, and all of them together; and rounding is allowed for, so that it can tell
    whether a training run without noise is one.

    Args:
        sums: The clipped sum of each parameter.
        gradients: What the optimizer stepped along.
        scale: What the noisy sum was divided by.
        deviation: The standard deviation that the noise has.

    Raises:
        FitError: The noise is too small, too large, or something else than noise.
    """
    squares, errors, counts = [], [], []
    for total, gradient in zip(sums, gradients, strict=True):
        noisy = gradient.double() * scale
        unit = _ROUNDING * torch.finfo(gradient.dtype).eps
        squares.append(float((noisy - total.double()).square().sum()))
        errors.append(float((unit * (noisy.abs() + total.double().abs())).square().sum()))
        counts.append(total.numel())
    alarm = FALSE_ALARM / (len(counts) + 1)
    parts = [*zip(squares, errors, counts, strict=True), (sum(squares), sum(errors), sum(counts))]
    for square, error, count in parts:
        low, high = noise_limits(count, alarm) if count else (0.0, 0.0)
        # What is below the precision of the numbers can neither be seen nor held against a step.
        if not low * deviation**2 - 2 * error <= square * 1.01 or not square <= 1.01 * high * deviation**2 + 2 * error:
            raise _wrong_size(square, count, 1, deviation, unit=1.0)
