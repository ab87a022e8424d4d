"""Whether logits changed: by more than the model's own noise, in units of the last digit that it computes with.

Logits may be scaled, shifted by a constant, or masked with very small numbers, and the model may compute in half
precision. So differences are counted in units of the last place of a typical logit, and masked logits do not count.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_exposure.adapters.protocol import dtype_of

_MASKED = 1e4
"""A logit that is smaller than the largest one by more than this has no probability that anyone could measure."""
_LARGEST_NOISE = 64.0
"""Rounding moves no logit by more than so many units: what does is no noise, and is not measured as noise."""
_QUIET = 0.5
"""The noise of a model that gives the same numbers in all batch shapes."""
_CLEARLY = 4.0
"""What moves by so many times the noise was moved by something else."""


def comparable(logits: Tensor) -> Tensor:
    """Logits in a precision in which differences can be taken, with no infinite ones and no NaN."""
    logits = logits.detach()
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nan_to_num(wide, nan=0.0, posinf=1e30, neginf=-1e30)


def eps_of(module: nn.Module, logits: Tensor) -> float:
    """The relative rounding of what a module computes: that of its weights or of its logits, the coarser one."""
    return max(torch.finfo(kind).eps for kind in (dtype_of(module), logits.dtype) if kind.is_floating_point)


def typical(logits: Tensor) -> float:
    """The size of the largest logits of a row."""
    top = comparable(logits).topk(min(8, logits.shape[-1]), dim=-1).values.abs().amax(dim=-1)
    return float(top.median())


def spread_of(logits: Tensor) -> float:
    """How far the largest logit of a row stands above the others, masked ones left out."""
    logits = comparable(logits)
    top = logits.amax(dim=-1, keepdim=True)
    seen = logits >= top - _MASKED
    mean = (logits * seen).sum(dim=-1, keepdim=True) / seen.sum(dim=-1, keepdim=True)
    return float((top - mean).median())


def difference(one: Tensor, other: Tensor) -> Tensor:
    """How far logits are apart; those that are masked in both are not."""
    seen = torch.zeros_like(one, dtype=torch.bool)
    for logits in (one, other):
        seen |= logits >= logits.amax(dim=-1, keepdim=True) - _MASKED
    return (one - other).abs() * seen


class SameLogits:
    """Equal but for rounding: one rule for all who read the same text in two ways.

    Args:
        eps: The relative rounding of the model.
        noise: How far its logits are apart when the same text is read in batches of two shapes.
    """

    def __init__(self, eps: float, noise: float = 0.0) -> None:
        self._slack = max(1e-4, 16.0 * eps)
        self._eps = eps
        self._noise = noise

    def limit(self, logits: Tensor) -> float:
        """How far others may be from these logits and still be the same."""
        logits = comparable(logits)
        return self._slack * spread_of(logits) + 4.0 * self._eps * typical(logits) + 4.0 * self._noise

    def __call__(self, one: Tensor, other: Tensor) -> bool:
        """Whether logits are the same."""
        if one.shape != other.shape:
            return False
        return bool(difference(comparable(one), comparable(other)).max() <= self.limit(other))

    def tensors(self, one: Tensor, other: Tensor) -> bool:
        """Whether other numbers that a model computed are the same; whole numbers must be equal."""
        if one.shape != other.shape:
            return False
        if not one.numel():
            return True
        slack = self._slack if one.is_floating_point() else 0.0
        return bool((one.double() - other.double()).abs().max() <= slack * float(other.abs().max()))


class Changes:
    """What differs from the logits of a batch of texts.

    Args:
        base: The logits `(batch, time, vocabulary)`, comparable ones.
        eps: The relative rounding of the model.
    """

    def __init__(self, base: Tensor, eps: float) -> None:
        self._base = base
        self._eps = eps
        self._typical = typical(base)
        self._noise = _QUIET

    def allow_for(self, same: Tensor) -> None:
        """Learn the noise from the logits of the same texts in another batch shape.

        That of most rows: in a single one a model may have come to another of two experts that are nearly alike.
        """
        noise = float(self._units(same).amax(dim=-1).median())
        self._noise = max(_QUIET, min(noise, _LARGEST_NOISE))

    def moved(self, other: Tensor) -> Tensor:
        """Where `(batch, time)` other logits are clearly different."""
        return self._units(other) > _CLEARLY * self._noise

    def elsewhere(self, base: Tensor) -> Changes:
        """Changes of other texts, with the same noise."""
        changes = Changes(base, self._eps)
        changes._noise = self._noise
        return changes

    def _units(self, other: Tensor) -> Tensor:
        size = torch.maximum(self._base.abs(), other.abs()).clamp(min=max(self._typical, 1e-30))
        return (difference(self._base, other) / size).amax(dim=-1) / self._eps
