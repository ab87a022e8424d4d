"""Was each example clipped?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import STOPPED

_Value = TypeVar("_Value")


def check_blocks(blocks: Sequence[Sequence[nn.Parameter]], parameters: Collection[nn.Parameter]) -> None:
    """Refuse norms that are taken over others than all parameters, or twice over some.

    Args:
        blocks: Over which parameters each norm is taken.
        parameters: All that are trained.

    Raises:
        FitError: A parameter is in no block, or in two.

    Example:
        >>> one, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        >>> check_blocks([[one], [other]], [one, other])
        >>> check_blocks([[one]], [one, other])
        Traceback (most recent call last):
        ...
        lightning_exposure.errors.FitError: The step was not clipped: 1 of 2 parameters are in no norm, or in two. ...
    """
    found = Counter(id(parameter) for block in blocks for parameter in block)
    wrong = {id(parameter) for parameter in parameters} ^ {key for key, count in found.items() if count == 1}
    if wrong:
        raise FitError(
            f"The step was not clipped: {len(wrong)} of {len(parameters)} parameters are in no norm, or in two. "
            f"{STOPPED}"
        )


def parts_of(
    values: Mapping[nn.Parameter, _Value], blocks: Sequence[Sequence[nn.Parameter]]
) -> list[dict[nn.Parameter, _Value]]:
    """What belongs to the parameters of each block, as far as there is something."""
    return [{parameter: values[parameter] for parameter in block if parameter in values} for block in blocks]


def check_clipping(sums: Iterable[Tensor], norms: Tensor, *, examples: int, max_grad_norm: float) -> None:
    """Refuse a sum of gradients that is longer than those of clipped examples can add up to.

    Args:
        sums: The parts of the sum, one for each parameter.
        norms: The norm of each example's gradient before clipping.
        examples: How many examples the batch has.
        max_grad_norm: What each of them was clipped to.

    Raises:
        FitError: It is longer.
    """
    # Sums of squares in double precision, without a copy.
    lengths = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in sums]
    length = float(torch.stack(lengths).norm())
    possible = float(norms.double().clamp(max=max_grad_norm).sum()) if examples else 0.0
    if examples and len(norms) != examples:
        raise FitError(f"The step clipped {len(norms)} gradients of {examples} examples. {STOPPED}")
    if not length <= possible * (1 + 1e-4) + 1e-12:
        raise FitError(
            f"The step was not clipped: the gradients of {examples} examples, each of a norm of at most "
            f"max_grad_norm={max_grad_norm:g}, add up to a norm of at most {possible:.4g}; it was {length:.4g}. "
            f"{STOPPED}"
        )
