"""Telling a backward pass that trains from one that only asks.

`loss.backward()` adds to the gradients of parameters. `torch.autograd.grad(loss, inputs)` does not, but runs through
the same layers. Per-example gradients must be recorded in the former and not in the latter. So a layer's outputs hang
on a leaf of their own, which is empty: what a backward pass shows is kept only when that leaf, too, is given its
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_exposure.errors import ModelError

TWICE = (
    "a backward pass with create_graph=True went through it, for gradients of gradients (a gradient penalty, a "
    "meta-learning step). Their part of the single examples' gradients cannot be found; leave such a term out of the "
    "loss."
)


class HeldBack:
    """Keeps what a backward pass shows until it turns out to be one that trains.

    Args:
        report: Called with what was shown.
    """

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._shown: tuple[Any, ...] | None = None

    def leaf(self, device: torch.device) -> Tensor:
        """What the outputs have to depend on. It is not kept here: it keeps this."""
        leaf = torch.empty(0, device=device, requires_grad=True)
        leaf.register_hook(self._trained)  # type: ignore[no-untyped-call]
        return leaf

    def show(self, *record: Any) -> Tensor:
        """To be called in the backward pass. Returns the gradient of the leaf."""
        self._shown = record
        return torch.empty(0, device=next(value.device for value in record if isinstance(value, Tensor)))

    def _trained(self, _: Tensor) -> None:
        record, self._shown = self._shown, None
        if record is not None:
            self._report(*record)


class Tap(torch.autograd.Function):
    """Passes a tensor on as it is, and shows its gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, _: Tensor, held: HeldBack, who: str) -> Tensor:
        """Nothing happens to the values."""
        ctx.held, ctx.who = held, who
        # As if it had been written to: then it may be written to, as any other result of a layer.
        ctx.mark_dirty(values)
        return values

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Nor to their gradient."""
        refuse_twice(ctx.who)
        return grads, ctx.held.show(grads), None, None


def refuse_twice(who: str) -> None:
    """Refuse a backward pass through which there will be another one; to be called within it.

    Raises:
        ModelError: It is one.
    """
    if torch.is_grad_enabled():
        raise ModelError(f"{who}: {TWICE}")
