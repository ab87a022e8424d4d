"""Listening to a layer: what goes into it, and which gradients come back to its outputs.

While a layer runs, its parameters do not want gradients, so autograd computes none; they are found later, for each
example, from what is recorded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.gradients import Gradient, Products, Whole
from lightning_exposure.privacy.layers import batch_dimension, raised, rule_for
from lightning_exposure.privacy.recurrent import layer_weights, run_layers


class Batch(Protocol):
    """What a listener has to know."""

    @property
    def examples(self) -> int | None:
        """How many examples were announced; None between two batches."""

    @property
    def listening(self) -> bool:
        """Whether a forward pass now is one of the training."""


class Listener:
    """Listens to one layer. Subclasses say what is recorded.

    Its methods are put on the layer as hooks. They are bound methods, so that a deep copy of the module is listened to
    by a copy of the listener.

    Args:
        name: Of the layer in its module.
        layer: What to listen to.
        batch: Says whether to listen.
    """

    def __init__(self, name: str, layer: nn.Module, batch: Batch) -> None:
        self.name = name
        self.layer = layer
        self._batch = batch
        self._paused: list[nn.Parameter] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    @property
    def took_part(self) -> bool:
        """Whether gradients came back in this batch."""
        raise NotImplementedError

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""
        raise NotImplementedError

    def forget(self) -> None:
        """Drop what was recorded."""
        raise NotImplementedError

    def attach(self) -> None:
        """Put the hooks on the layer."""
        before = self.layer.register_forward_pre_hook(self._before, with_kwargs=True)
        # Also after an error: the parameters must not stay as they are during the forward pass.
        after = self.layer.register_forward_hook(self._after, with_kwargs=True, always_call=True)
        self._handles = [before, after]

    def detach(self) -> None:
        """Take the hooks off."""
        self._resume()
        self.forget()
        for handle in self._handles:
            handle.remove()

    def _before(self, layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        # Something is left here if the forward pass before this one was interrupted from the keyboard.
        self._resume()
        if self._batch.listening:
            self._paused = [value for value in layer.parameters(recurse=False) if value.requires_grad]
            for parameter in self._paused:
                parameter.requires_grad_(False)

    def _after(self, layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], outputs: Any) -> Any:
        self._resume()

    def _resume(self) -> None:
        for parameter in self._paused:
            parameter.requires_grad_(True)
        self._paused = []

    def _check_examples(self, tensor: Tensor, what: str) -> None:
        examples, dimension = self._batch.examples, batch_dimension(self.layer)
        if examples and (tensor.dim() <= dimension or tensor.shape[dimension] != examples):
            raise ModelError(
                f"{self.name!r} ({type(self.layer).__name__}): its {what} have the shape {tuple(tensor.shape)}, where "
                f"dimension {dimension} should be the {examples} examples of the batch. {self._remedy(tensor)}"
            )

    def _remedy(self, tensor: Tensor) -> str:
        if isinstance(self.layer, nn.Embedding) and (tensor.dim() == 1 or tensor.shape[0] == 1):
            return "Look up indices of shape (batch, time), also if all examples have the same: position ids, for one."
        return (
            "Keep the batch as the first dimension: give the layer (batch, time, features) instead of flattening the "
            "steps into the batch or putting time first. For recurrent layers, use batch_first=True."
        )


class LayerListener(Listener):
    """Listens to a layer that takes a tensor and returns one."""

    def __init__(self, name: str, layer: nn.Module, batch: Batch) -> None:
        super().__init__(name, layer, batch)
        self._rule = rule_for(layer)
        self._records: list[tuple[Tensor, Tensor]] = []

    @property
    def took_part(self) -> bool:
        """Whether gradients came back in this batch."""
        return bool(self._records)

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""
        dimension = batch_dimension(self.layer)
        for inputs, grads in self._records:
            inputs, grads = raised(inputs).movedim(dimension, 0), raised(grads).movedim(dimension, 0)
            yield from self._rule.gradients(self.layer, inputs, grads)

    def forget(self) -> None:
        """Drop what was recorded."""
        self._records = []

    def attach(self) -> None:
        """Put the hooks on the layer."""
        self._rule.prepare(self.layer)
        super().attach()

    def detach(self) -> None:
        """Take the hooks off."""
        super().detach()
        self._rule.clean(self.layer)

    def _after(self, layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], outputs: Any) -> Any:
        self._resume()
        # There are no outputs after an error.
        if not self._batch.listening or outputs is None:
            return None
        given = [value for value in (*inputs, *options.values()) if value is not None]
        if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(outputs, Tensor):
            raise ModelError(
                f"{self.name!r} ({type(layer).__name__}): takes or returns something else than one tensor, so the "
                "gradients of single examples cannot be found. Split it into such layers, or freeze it."
            )
        (read,) = given
        self._check_examples(read, "inputs")
        self._check_examples(outputs, "outputs")
        outputs = self._unshared(outputs, read)
        arrived = partial(self._arrived, read.detach(), read._version)
        if outputs.requires_grad:
            outputs.register_hook(arrived)
            return outputs
        # The first layers: nothing before them wants a gradient.
        tap: Callable[..., Tensor] = _Tap.apply
        return tap(outputs, torch.empty(0, device=outputs.device, requires_grad=True), arrived)

    def _unshared(self, outputs: Tensor, read: Tensor) -> Tensor:
        """The outputs as a tensor that is no view of another one.

        Autograd forgets the hooks of a view when something works in place on it, as nn.ReLU(inplace=True) does.
        """
        if outputs._is_view() and self._rule.names is not None:
            # A linear layer gives its result another shape; nobody else has it, so it need not be copied.
            return torch.ops.aten._unsafe_view(outputs, outputs.shape)  # type: ignore[no-any-return]
        return outputs.clone() if outputs._is_view() or outputs is read else outputs

    def _arrived(self, read: Tensor, version: int, grads: Tensor) -> None:
        # Autograd no longer watches over the inputs, because the parameters' gradients are none of its business.
        if read._version != version:
            raise ModelError(
                f"{self.name!r} ({type(self.layer).__name__}): its inputs were changed in place after it had read "
                "them. Work on a copy (x = x + y instead of x += y)."
            )
        if self._batch.examples:
            self._records.append((read, grads.detach()))


class RecurrentListener(Listener):
    """Runs an LSTM or a GRU by kernels that report what is needed."""

    layer: nn.LSTM | nn.GRU

    def __init__(self, name: str, layer: nn.Module, batch: Batch) -> None:
        super().__init__(name, layer, batch)
        self._records: list[tuple[int, tuple[Tensor, ...]]] = []

    @property
    def took_part(self) -> bool:
        """Whether gradients came back in this batch."""
        return bool(self._records)

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""
        for layer, (inputs, d_inputs, hiddens, d_hiddens) in self._records:
            left = d_inputs.transpose(0, 1)
            # The same object if it is the same: then their Gram matrix is made once.
            other = left if d_hiddens is d_inputs else d_hiddens.transpose(0, 1)
            weights = layer_weights(self.layer, layer)
            yield weights[0], Products(left, inputs.transpose(0, 1))
            yield weights[1], Products(other, hiddens.transpose(0, 1))
            if self.layer.bias:
                yield weights[2], Whole(left.sum(1))
                yield weights[3], Whole(other.sum(1))

    def forget(self) -> None:
        """Drop what was recorded."""
        self._records = []

    def attach(self) -> None:
        """Put the hooks on the layer, and another way to run it."""
        super().attach()
        self.layer.forward = self._forward  # type: ignore[method-assign]

    def detach(self) -> None:
        """Take them off again."""
        super().detach()
        vars(self.layer).pop("forward", None)

    def _forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        layer = self.layer
        if not self._batch.listening:
            native: Any = type(layer).forward
            outputs, state = native(layer, input, hx)
            return outputs, state
        if isinstance(input, PackedSequence) or input.dim() != 3:
            given = "a PackedSequence" if isinstance(input, PackedSequence) else f"a tensor {tuple(input.shape)}"
            raise ModelError(
                f"{self.name!r} ({type(layer).__name__}): was given {given}. Give it a padded batch (batch, time, "
                "features), and leave the padding out of the loss."
            )
        self._check_examples(input, "inputs")
        layer.check_input(input, None)
        if hx is not None:
            layer.check_forward_args(input, hx, None)
        return run_layers(layer, input, hx, self._report_of)

    def _report_of(self, layer: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
        return partial(self._reported, layer)

    def _reported(self, layer: int, *record: Tensor) -> None:
        if self._batch.examples:
            self._records.append((layer, record))


class _Tap(torch.autograd.Function):
    """Passes a tensor on as it is, and its gradient to a function."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, _: Tensor, arrived: Callable[[Tensor], None]) -> Tensor:
        ctx.arrived = arrived
        # As if it had been written to: then it may be written to, as any other result of a layer.
        ctx.mark_dirty(values)
        return values

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[None, None, None]:
        ctx.arrived(grads)
        return None, None, None


def is_listened_to(layer: nn.Module) -> bool:
    """Whether a listener is attached to a layer."""
    return any(isinstance(getattr(hook, "__self__", None), Listener) for hook in layer._forward_hooks.values())
