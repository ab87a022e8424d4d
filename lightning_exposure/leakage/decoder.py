"""`Decoder`: how text is sampled from a model, and what that makes of the probability of each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_exposure._checks import number, whole_number
from lightning_exposure.errors import ModelError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_SUMMING = 64.0
"""Sums of probabilities may be wrong by so many units in the last place, in whatever order they are added up."""


class TokenBounds(NamedTuple):
    """Between which two numbers the probability of each token lies, `(rows, vocabulary)`.

    The two differ only where rounding leaves open which tokens a cut removes.
    """

    low: Floats
    high: Floats


class _Cut(NamedTuple):
    """What a cut keeps for certain, and what it may keep or not."""

    sure: Flags
    perhaps: Flags


@dataclass(frozen=True)
class Decoder:
    """How the next token is drawn: temperature, then `top_k`, then `top_p`, in the order of `generate`.

    Args:
        temperature: What logits are divided by.
        top_k: Only this many of the most likely tokens are kept, and those as likely as the last of them; None: all.
        top_p: Only the most likely tokens that together have at least this probability are kept; None: all.

    Raises:
        ArgumentError: One of them is out of range.

    Example:
        >>> decoder = Decoder(temperature=1.0, top_k=2)
        >>> decoder.probabilities(torch.tensor([[0.5, 0.3, 0.2]]).log()).round(3).tolist()
        [[0.625, 0.375, 0.0]]
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        """Refuse what `generate` could not do either."""
        number("temperature", self.temperature, above=0, remedy="Greedy decoding is top_k=1.")
        if self.top_k is not None:
            whole_number("top_k", self.top_k, at_least=1)
        if self.top_p is not None:
            number("top_p", self.top_p, above=0, at_most=1, remedy="None keeps all tokens.")

    @property
    def cuts(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_k is not None or (self.top_p is not None and self.top_p < 1.0)

    def probabilities(self, logits: Tensor) -> Floats:
        """The probability of each token `(rows, vocabulary)`; where rounding is all that decides a cut, it decides."""
        return self.bounds(logits, 0.0, repeatable=True).high

    def draw(self, logits: Tensor, numbers: Tensor) -> Tensor:
        """A token for each row, from a random number for each row: each token as often as `probabilities` says.

        Args:
            logits: What the model says `(rows, vocabulary)`.
            numbers: One for each row, evenly distributed from 0 to 1, 1 left out.

        Raises:
            ModelError: A row has no finite logit, or a NaN.

        Example:
            >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log().expand(4, -1)
            >>> Decoder(top_k=2).draw(logits, torch.tensor([0.0, 0.6, 0.65, 0.99])).tolist()
            [0, 0, 1, 1]
        """
        scores = logits.detach().double() / self.temperature
        largest = scores.amax(dim=1, keepdim=True)
        if not bool(torch.isfinite(largest).all()):
            raise _no_number()
        weights = (scores - largest).exp()
        if self.top_k is not None and self.top_k < weights.shape[1]:
            weights *= scores >= scores.topk(self.top_k, dim=1).values[:, -1:]
        if self.top_p is not None and self.top_p < 1.0:
            weights *= scores >= _lowest_in_nucleus(scores, weights, self.top_p)
        sums = weights.cumsum(dim=1)
        total = sums[:, -1]
        # Below the total, whatever is rounded: else the last token would be drawn, also one that a cut removed.
        wanted = torch.minimum(numbers.to(sums) * total, torch.nextafter(total, torch.zeros_like(total)))
        return torch.searchsorted(sums, wanted[:, None], right=True)[:, 0]

    def bounds(self, logits: Tensor, rounding: float = 0.0, *, repeatable: bool = False) -> TokenBounds:
        """Between what the probability of each token lies.

        Args:
            logits: What the model says `(rows, vocabulary)`.
            rounding: Logits that differ by no more than this may be in either order.
            repeatable: Whether logits that are equal to the last digit are equal for certain.

        Raises:
            ModelError: A row has no finite logit, or a NaN.
        """
        scores: Floats = logits.detach().cpu().double().numpy() / self.temperature
        largest = scores.max(axis=1, keepdims=True)
        if not np.isfinite(largest).all():
            raise _no_number()
        weights = np.exp(scores - largest)
        if not self.cuts:
            chances = weights / weights.sum(axis=1, keepdims=True)
            return TokenBounds(chances, chances)
        eps = torch.finfo(logits.dtype).eps if logits.is_floating_point() else np.finfo(np.float64).eps
        found = [
            self._after_cuts(row, weight, rounding / self.temperature, float(eps), repeatable)
            for row, weight in zip(scores, weights, strict=True)
        ]
        return TokenBounds(np.stack([row.low for row in found]), np.stack([row.high for row in found]))

    def _after_cuts(
        self, scores: Floats, weights: Floats, rounding: float, eps: float, repeatable: bool
    ) -> TokenBounds:
        """The bounds of one row."""
        cut = _Cut(weights > 0.0, np.zeros(len(scores), dtype=bool))
        if self.top_k is not None:
            cut = _keep_likeliest(scores, cut, min(self.top_k, len(scores)), rounding, repeatable)
        if self.top_p is not None and self.top_p < 1.0:
            slack = rounding + _SUMMING * eps if rounding or not repeatable else 0.0
            cut = _keep_nucleus(scores, weights, cut, self.top_p, rounding, slack)
        sure, perhaps = np.where(cut.sure, weights, 0.0), np.where(cut.perhaps, weights, 0.0)
        least, most = sure.sum(), sure.sum() + perhaps.sum()
        low = sure / most
        # A token that may be kept is most likely where no other such token is.
        high = np.where(cut.perhaps, perhaps / np.where(perhaps > 0.0, least + perhaps, 1.0), 0.0)
        if least > 0.0:
            high += sure / least
        return TokenBounds(low, high)


def _keep_likeliest(scores: Floats, before: _Cut, count: int, rounding: float, repeatable: bool) -> _Cut:
    """A token is kept if fewer than `count` others are above it."""
    ordered = np.sort(scores)
    may_be_above = _number_above(ordered, scores - rounding)
    if rounding > 0.0:  # or it would not be above itself
        may_be_above -= _number_equal(ordered, scores) if repeatable else 1
    kept = may_be_above < count
    gone = _number_above(ordered, scores + rounding) >= count
    return _Cut(before.sure & kept, (before.sure | before.perhaps) & ~kept & ~gone)


def _keep_nucleus(scores: Floats, weights: Floats, before: _Cut, top_p: float, rounding: float, slack: float) -> _Cut:
    """A token is kept if those above it together have a probability below `top_p`."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    sure = _sums_from_the_top(np.where(before.sure, weights, 0.0)[order])
    perhaps = _sums_from_the_top(np.where(before.perhaps, weights, 0.0)[order])
    surely_above = np.searchsorted(ordered, scores + rounding, side="right")
    maybe_above = np.searchsorted(ordered, scores - rounding, side="right")
    own = weights if rounding > 0.0 else np.zeros_like(weights)
    least = sure[surely_above] / (sure[0] + perhaps[0])
    above = np.maximum(sure[maybe_above] + perhaps[maybe_above] - own, 0.0)
    most = above / np.maximum(sure[0] + perhaps[maybe_above], np.finfo(np.float64).tiny)
    is_first = len(scores) - maybe_above <= (1 if rounding > 0.0 else 0)
    kept = (most + slack < top_p) | is_first  # the most likely token is always kept
    gone = (least - slack >= top_p) & (surely_above < len(scores))
    return _Cut(before.sure & kept, (before.sure | before.perhaps) & ~kept & ~gone)


def _number_above(ordered: Floats, limits: Floats) -> NDArray[np.int64]:
    """How many of some numbers in increasing order are above each limit."""
    above: NDArray[np.int64] = len(ordered) - np.searchsorted(ordered, limits, side="right")
    return above


def _number_equal(ordered: Floats, values: Floats) -> NDArray[np.int64]:
    """How many of some numbers in increasing order are equal to each value."""
    equal: NDArray[np.int64] = np.searchsorted(ordered, values, "right") - np.searchsorted(ordered, values, "left")
    return equal


def _sums_from_the_top(values: Floats) -> Floats:
    """For each position, the sum of what stands there and behind it; 0 behind the last."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def _lowest_in_nucleus(scores: Tensor, weights: Tensor, top_p: float) -> Tensor:
    """For each row the score of the least likely token that `top_p` keeps; those as likely are kept with it."""
    ordered, order = scores.sort(dim=1, descending=True)
    sums = weights.gather(1, order).cumsum(dim=1)
    above = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], dim=1)  # what is more likely, together
    kept = above < top_p * sums[:, -1:]  # the most likely one always is
    return ordered.gather(1, kept.sum(dim=1, keepdim=True) - 1)


def _no_number() -> ModelError:
    return ModelError(
        "the model returned NaN or infinite logits; the probability of a token needs finite ones. Look at the "
        "training (a loss that became NaN?) before measuring."
    )
