"""All that this library uses of Opacus beyond its documented classes, each behind a name that says what it is for.

A test per function, in `tests/test_opacus_private.py`, says by its name what has changed. Nothing is imported before it
is needed. What is inherited from Opacus' optimizers is in `privacy/steps/optimizer.py`, and tested there, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_KEPT_ON_LAYERS = "ft_compute_sample_grad"
_KEPT_ON_PARAMETERS = ("summed_grad", "grad_sample")


# ---- accounting -----------------------------------------------------------------------------------------------


def moment(noise_multiplier: float, sample_rate: float, order: float) -> float:
    """The Rényi divergence of one step of DP-SGD; infinite where Opacus cannot compute it.

    Args:
        noise_multiplier: Of the step.
        sample_rate: The probability with which a record is in the batch.
        order: Of the divergence, above 1.
    """
    from opacus.accountants.analysis.rdp import compute_rdp

    try:
        return float(compute_rdp(q=sample_rate, noise_multiplier=noise_multiplier, steps=1, orders=float(order)))
    except (ValueError, OverflowError, ZeroDivisionError):
        return math.inf  # what cannot be computed for an order is no bound; others are


def epsilon_by_losses(
    steps: Sequence[tuple[float, float, int]], delta: float, *, span: float, mesh: float, tolerance: tuple[float, float]
) -> float | None:
    """An upper bound of epsilon by the distribution of the privacy loss; None where the computation breaks down.

    Args:
        steps: As `(noise multiplier, sample rate, how many)`.
        delta: The delta that goes with epsilon.
        span: How far from 0 the losses are looked at.
        mesh: How far the points are apart at which they are.
        tolerance: By how much delta and epsilon may be off.
    """
    from opacus.accountants.analysis.prv import (
        Domain,
        PoissonSubsampledGaussianPRV,
        TruncatedPrivacyRandomVariable,
        compose_heterogeneous,
        discretize,
    )

    try:
        with np.errstate(all="ignore"):
            losses = [PoissonSubsampledGaussianPRV(rate, noise) for noise, rate, _ in steps]
            domain = Domain.create_aligned(-span, span, mesh)
            pieces = [discretize(TruncatedPrivacyRandomVariable(x, domain.t_min, domain.t_max), domain) for x in losses]
            together = compose_heterogeneous(pieces, [count for _, _, count in steps])
            found = float(together.compute_epsilon(delta, *tolerance)[2])
    except (RuntimeError, ValueError, IndexError, MemoryError):
        return None
    return found if math.isfinite(found) else None


# ---- per-example gradients of layers --------------------------------------------------------------------------


def has_rule(kind: type[nn.Module]) -> bool:
    """Whether Opacus has a rule for the per-example gradients of a kind of layer."""
    return kind in _rules()


def gradients_by_rule(layer: nn.Module, inputs: Tensor, grads: Tensor) -> Mapping[nn.Parameter, Tensor]:
    """The per-example gradients of a layer's parameters, by the rule that Opacus has for its kind.

    Args:
        layer: Of a kind for which it has one.
        inputs: What the layer read, examples first.
        grads: The gradients of what it returned, likewise.
    """
    found: Mapping[nn.Parameter, Tensor] = _rules()[type(layer)](layer, [inputs], grads)
    return found


def _rules() -> Mapping[type[nn.Module], Any]:
    from opacus.grad_sample import GradSampleModule

    rules: Mapping[type[nn.Module], Any] = GradSampleModule.GRAD_SAMPLERS
    return rules


def prepare_vectorized(layer: nn.Module) -> None:
    """Let `gradients_vectorized` work on a layer; to be called before anything is hooked to it."""
    from opacus.grad_sample.functorch import prepare_layer

    prepare_layer(layer)


def gradients_vectorized(layer: nn.Module, inputs: Tensor, grads: Tensor) -> Mapping[nn.Parameter, Tensor]:
    """The per-example gradients of any layer's parameters, by running it on each example by itself, vectorized."""
    from opacus.grad_sample.functorch import ft_compute_per_sample_gradient

    found: Mapping[nn.Parameter, Tensor] = ft_compute_per_sample_gradient(layer, [inputs], grads)
    return found


def clean_layer(layer: nn.Module) -> None:
    """Undo `prepare_vectorized`: Opacus keeps its function on the layer."""
    vars(layer).pop(_KEPT_ON_LAYERS, None)


# ---- the optimizer's notes on parameters ----------------------------------------------------------------------


def add_to_sum(parameter: nn.Parameter, clipped: Tensor) -> Tensor:
    """Add a clipped sum to what a `DPOptimizer` has gathered for a parameter so far; returns all of it."""
    # Opacus has given one only to those that were trainable when it was made.
    gathered: Tensor | None = getattr(parameter, "summed_grad", None)
    total = clipped if gathered is None else gathered.add_(clipped)
    parameter.summed_grad = total  # type: ignore[attr-defined]
    return total


def noise_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which precision a `DPOptimizer` draws the noise of parameters of some precision.

    In that of the parameters from Opacus 1.6 on, and in single precision before.
    """
    import torch
    from opacus.optimizers.optimizer import _generate_noise

    # Without a deviation it draws nothing, and gives zeros of the kind that it would have drawn.
    found: torch.dtype = _generate_noise(0.0, torch.empty(1, dtype=dtype)).dtype
    return found


def clean_parameter(parameter: nn.Parameter) -> None:
    """Take away what a `DPOptimizer` has put on a parameter."""
    for name in _KEPT_ON_PARAMETERS:
        vars(parameter).pop(name, None)
