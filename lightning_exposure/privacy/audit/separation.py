"""How well scores tell members of the training data from others: pure functions.

A higher score means: more likely a member. Scores that are equal tell nothing apart.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from lightning_exposure._checks import number, refusal
from lightning_exposure.errors import ScoreError

Floats = NDArray[np.float64]


def checked_scores(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[Floats, Floats]:
    """Both as arrays of numbers; tensors of any precision, on any device, with or without gradients, are lists too.

    Raises:
        ScoreError: One of them is empty, is not a list, or holds a text, NaN or infinity.
    """
    return _checked(scores_in, "scores_in", "inserted"), _checked(scores_out, "scores_out", "held out")


def _checked(scores: ArrayLike, argument: str, kind: str) -> Floats:
    try:
        found = np.asarray(_untied(scores))
        place = _first_that_is_no_number(scores, found)
        array = found.astype(np.float64) if place is None else found
    except (TypeError, ValueError, RuntimeError) as error:
        size = f" of {len(scores)}" if isinstance(scores, Sized) else ""
        raise ScoreError(f"{argument} is a {type(scores).__name__}{size}; expected a list of numbers.") from error
    if place is not None:
        raise refusal(f"{argument}[{place}]", scores[place], "a number", error=ScoreError, with_type=True)  # type: ignore[index]
    if array.ndim != 1:
        raise ScoreError(f"{argument} is an array of shape {array.shape}; expected a list of numbers. Flatten it.")
    if not len(array):
        raise ScoreError(
            f"{argument} is empty; expected at least one canary that was {kind}, to compare. Draw the canaries with "
            "holdout=0.5, and enough of them."
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise ScoreError(
            f"{argument}[{bad[0]}] is {array[bad[0]]}, and {len(bad)} of {len(array)} are not finite; expected finite "
            "numbers. Has the training diverged?"
        )
    return array


def _untied(scores: Any) -> Any:
    """Without what NumPy cannot read of tensors: gradients, other devices, half precision."""
    if isinstance(scores, list | tuple):
        return [_untied(score) for score in scores]
    return scores.detach().cpu().double().numpy() if hasattr(scores, "detach") else scores


def _first_that_is_no_number(scores: Any, found: NDArray[Any]) -> int | None:
    """Where it is: NumPy would read the numbers in texts, take dates for some, and half of what is complex."""
    if found.ndim != 1 or found.dtype.kind not in "USOMmc":
        return None
    listed = scores if isinstance(scores, list | tuple) else found.tolist()
    return next((place for place, score in enumerate(listed) if not hasattr(score, "__float__")), None)


def auc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """The probability that a member has a higher score than another; equal scores count one half.

    Example:
        >>> auc([1.0, 2.0], [0.0, 1.0])
        0.875
    """
    inside, outside = checked_scores(scores_in, scores_out)
    ranks = stats.rankdata(np.concatenate([inside, outside]))[: len(inside)]
    least = len(inside) * (len(inside) + 1) / 2
    return float((ranks.sum() - least) / (len(inside) * len(outside)))


def attack_accuracy(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """The share of right answers, members and others weighing the same, if the highest scores are called members.

    As many are called members as there are. So no threshold was picked because it does well on these very scores, and
    scores that tell nothing give one half on average, whatever the sizes. Equal scores across the cut are split evenly.

    Example:
        >>> attack_accuracy([3.0, 2.0, 0.5], [1.0, 0.0, -1.0])  # one of three is wrong on both sides
        0.6666666666666666
    """
    inside, outside = checked_scores(scores_in, scores_out)
    cut = np.sort(np.concatenate([inside, outside]))[-len(inside)]
    above = int((inside > cut).sum()), int((outside > cut).sum())
    equal = int((inside == cut).sum()), int((outside == cut).sum())
    share = (len(inside) - sum(above)) / sum(equal)
    tpr = (above[0] + share * equal[0]) / len(inside)
    fpr = (above[1] + share * equal[1]) / len(outside)
    return (tpr + 1.0 - fpr) / 2


def tpr_at_fpr(scores_in: ArrayLike, scores_out: ArrayLike, fpr: float = 0.01) -> float:
    """The share of members with a score above all but a small share of the others.

    With fewer than `1 / fpr` others, not one of them may lie above.

    Example:
        >>> tpr_at_fpr([5.0, 4.0, 1.0, 0.0], [4.0, 2.0], fpr=0.5)
        0.5
    """
    number("fpr", fpr, at_least=0, below=1, remedy="For example 0.01.")
    inside, outside = checked_scores(scores_in, scores_out)
    allowed = int(fpr * len(outside) + 1e-9)  # 0.07 * 100 is a little more than 7, 0.29 * 100 a little less than 29
    threshold = np.sort(outside)[-1 - allowed]
    return float((inside > threshold).mean())
