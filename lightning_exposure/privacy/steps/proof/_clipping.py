"""Was each example clipped?"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from lightning_exposure.errors import FitError
from lightning_exposure.privacy.steps.proof._error import STOPPED


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
