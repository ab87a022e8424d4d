"""The slow and obvious way to clip: one example after the other, with plain autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lightning_exposure.privacy.clipping.clipping import Clipping

Loss = Callable[[nn.Module, Tensor], Tensor]
Sums = dict[nn.Parameter, Tensor]


def mean_of_squares(module: nn.Module, inputs: Tensor) -> Tensor:
    """A loss that is a mean over the examples, for a module that returns a tensor, or a tuple that begins with it."""
    outputs = module(inputs)
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    return (outputs * outputs.detach().cos() + outputs.square()).sum() / len(inputs)


def one_by_one(module: nn.Module, inputs: Tensor, norm: float, loss: Loss = mean_of_squares) -> tuple[Sums, Tensor]:
    """The clipped sum and the norms, from a backward pass for each example."""
    sums = {p: torch.zeros_like(p) for p in module.parameters() if p.requires_grad}
    norms = []
    for i in range(len(inputs)):
        module.zero_grad()
        loss(module, inputs[i : i + 1]).backward()
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in sums]
        norms.append(torch.cat([gradient.flatten() for gradient in found]).norm())
        for total, gradient in zip(sums.values(), found, strict=True):
            total += gradient * (norm / (norms[-1] + 1e-6)).clamp(max=1)
    module.zero_grad()
    return sums, torch.stack(norms)


def in_one_pass(module: nn.Module, inputs: Tensor, norm: float, loss: Loss = mean_of_squares) -> tuple[Sums, Tensor]:
    """The clipped sum and the norms, from one backward pass."""
    clipping = Clipping(module, max_grad_norm=norm)
    with clipping:
        clipping.begin(len(inputs))
        loss(module, inputs).backward()
        return clipping.clipped_sum(), clipping.norms


def assert_clips_like_a_loop(
    module: nn.Module, inputs: Tensor, loss: Loss = mean_of_squares, *, tolerance: float = 1e-10
) -> None:
    """Both ways agree, for a clipping norm that some of the examples exceed and some do not."""
    norms = one_by_one(module, inputs, 1.0, loss)[1]
    norm = float(norms.min() + norms.max()) / 2
    wanted, wanted_norms = one_by_one(module, inputs, norm, loss)
    assert 0 < int((wanted_norms > norm).sum()) < len(inputs)
    found, found_norms = in_one_pass(module, inputs, norm, loss)
    torch.testing.assert_close(found_norms, wanted_norms, rtol=tolerance, atol=tolerance)
    assert list(found) == list(wanted)
    for parameter, total in wanted.items():
        torch.testing.assert_close(found[parameter], total, rtol=tolerance, atol=tolerance)
