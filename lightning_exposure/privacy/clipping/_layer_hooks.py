"""Listening to a layer: what goes into it, and which gradients come back to its outputs.

While a layer runs, its parameters do not want gradients, so autograd computes none; they are found later, for each
example, from what is recorded here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lightning_exposure._torch import as_no_view, is_view, writes_to
from lightning_exposure.errors import ModelError
from lightning_exposure.privacy.clipping._backward_passes import HeldBack, Tap, refuse_twice
from lightning_exposure.privacy.clipping._layers import batch_dimension, raised, rule_for
from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Whole
from lightning_exposure.privacy.clipping.recurrent_layers import layer_weights, run_layers
from lightning_exposure.privacy.clipping.support import hooked


class Batch(Protocol):
    """What a listener has to know."""

    @property
    def examples(self) -> int | None:
        """How many examples were announced; None between two batches."""

    @property
    def listening(self) -> bool:
        """Whether a forward pass now is one of the training."""


class Listener(ABC):
    """Listens to one layer. Subclasses say what is recorded.

    It takes the place of the layer's forward, within all hooks: what it sees is what the layer itself reads and
    returns, whatever hooks do before and after. It does so by a bound method, so that a deep copy of the module is
    listened to by a copy of the listener.

    Args:
        name: Of the layer in its module.
        layer: What to listen to.
        batch: Says whether to listen.
    """

    def __init__(self, name: str, layer: nn.Module, batch: Batch) -> None:
        self.name = name
        self.layer = layer
        self._batch = batch
        self._own: Callable[..., Any] | None = vars(layer).get("forward")
        self._kind = type(layer)
        self._parameters = own_parameters(layer)
        self._records: list[Any] = []

    @property
    def who(self) -> str:
        """The layer, in messages."""
        return f"{self.name!r} ({type(self.layer).__name__})"

    @property
    def took_part(self) -> bool:
        """Whether gradients came back in this batch."""
        return bool(self._records)

    def forget(self) -> None:
        """Drop what was recorded."""
        self._records = []

    @abstractmethod
    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""

    @abstractmethod
    def _listened(self, *inputs: Any, **options: Any) -> Any:
        """What the layer does, in a way that everything needed is recorded on the way back."""

    def attach(self) -> None:
        """Take the place of the layer's forward."""
        vars(self.layer)["forward"] = self._forward

    def detach(self) -> None:
        """Give it back."""
        self.forget()
        if is_listened_to(self.layer):
            del vars(self.layer)["forward"]
            if self._own is not None:
                vars(self.layer)["forward"] = self._own

    def check(self) -> None:
        """Refuse a layer that was changed since, or whose gradients something wants to see or to change.

        Raises:
            ModelError: Says what was changed.
        """
        if type(self.layer) is not self._kind or not _same(own_parameters(self.layer), self._parameters):
            raise ModelError(
                f"{self.who}: was changed while it trained: its parameters are not those that it had (pruning, a "
                "parametrization, a weight that was replaced). Do it before training, and make weights that are "
                "computed from others permanent (prune.remove, parametrize.remove_parametrizations)."
            )
        problem = hooked(self.layer)
        if problem:
            raise ModelError(f"{self.who}: {problem}")

    def _forward(self, *inputs: Any, **options: Any) -> Any:
        if not self._batch.listening:
            return self._native(*inputs, **options)
        paused = [value for value in self.layer.parameters(recurse=False) if value.requires_grad]
        try:
            for parameter in paused:
                parameter.requires_grad_(False)
            return self._listened(*inputs, **options)
        finally:
            for parameter in paused:
                parameter.requires_grad_(True)

    def _native(self, *inputs: Any, **options: Any) -> Any:
        """What the layer does by itself."""
        if self._own is not None:
            return self._own(*inputs, **options)
        forward: Any = type(self.layer).forward
        return forward(self.layer, *inputs, **options)

    def _check_examples(self, tensor: Tensor, what: str) -> None:
        examples, dimension = self._batch.examples, batch_dimension(self.layer)
        if examples and (tensor.dim() <= dimension or tensor.shape[dimension] != examples):
            raise ModelError(
                f"{self.who}: its {what} have the shape {tuple(tensor.shape)}, where "
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
        self._checked = self._rule.names is not None

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""
        dimension = batch_dimension(self.layer)
        for read, arrived in self._records:
            inputs, grads = raised(read).movedim(dimension, 0), raised(arrived).movedim(dimension, 0)
            found = self._found(inputs, grads)
            if not self._checked:
                self._check_rule(raised(read), raised(arrived), found)
            yield from found
        self._checked = self._checked or bool(self._records)

    def _found(self, inputs: Tensor, grads: Tensor) -> list[tuple[Tensor | None, Gradient]]:
        try:
            return list(self._rule.gradients(self.layer, inputs, grads))
        except RuntimeError as problem:
            if not self._rule.vectorized:
                raise
            raise ModelError(
                f"{self.who}: cannot be run on each example by itself, which is how the gradients of single examples "
                f"are found in a layer of a kind that is not known here ({problem}). Make it of known layers "
                "(nn.Linear and then nn.Dropout, for one), or freeze it."
            ) from problem

    def attach(self) -> None:
        """Take the place of the layer's forward."""
        self._rule.prepare(self.layer)
        super().attach()

    def detach(self) -> None:
        """Give it back."""
        super().detach()
        self._rule.clean(self.layer)

    def _listened(self, *inputs: Any, **options: Any) -> Any:
        outputs = self._native(*inputs, **options)
        given = [value for value in (*inputs, *options.values()) if value is not None]
        if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(outputs, Tensor):
            raise ModelError(
                f"{self.who}: takes or returns something else than one tensor, so the "
                "gradients of single examples cannot be found. Split it into such layers, or freeze it."
            )
        (read,) = given
        self._check_examples(read, "inputs")
        self._check_examples(outputs, "outputs")
        held = HeldBack(partial(self._arrived, read.detach(), writes_to(read)))
        tap: Callable[..., Tensor] = Tap.apply
        return tap(self._unshared(outputs, read), held.leaf(outputs.device), held, self.who)

    def _unshared(self, outputs: Tensor, read: Tensor) -> Tensor:
        """The outputs as a tensor that is no view of another one.

        Autograd forgets the hooks of a view when something works in place on it, as nn.ReLU(inplace=True) does.
        """
        if self._rule.names is None:
            # Who knows what it has kept for its own backward pass; that must not count as written to.
            return outputs.clone() if is_view(outputs) or outputs is read or outputs.requires_grad else outputs
        # A linear layer gives its result another shape; nobody else has it, so it need not be copied.
        return as_no_view(outputs) if is_view(outputs) else outputs

    def _arrived(self, read: Tensor, version: int, grads: Tensor) -> None:
        # Autograd no longer watches over the inputs, because the parameters' gradients are none of its business.
        if writes_to(read) != version:
            raise ModelError(
                f"{self.who}: its inputs were changed in place after it had read "
                "them. Work on a copy (x = x + y instead of x += y)."
            )
        if self._batch.examples:
            self._records.append((read, grads.detach()))

    def _check_rule(self, read: Tensor, grads: Tensor, found: list[tuple[Tensor | None, Gradient]]) -> None:
        """Refuse a layer of a kind that is not known here, if its single gradients do not add up to autograd's."""
        wanted = [value for value in self.layer.parameters(recurse=False) if value.requires_grad]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            outputs = self._native(read)
            expected = torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
        for parameter, total in zip(wanted, expected, strict=True):
            single = [part.whole() for owner, part in found if owner is parameter]
            size = sum(float(values.flatten(1).norm(dim=1).sum()) for values in single)
            summed = sum((values.sum(0) for values in single), torch.zeros_like(parameter))
            off = float((summed - (0 if total is None else total)).norm())
            if not off <= 0.01 * size + 1e-12:
                raise ModelError(
                    f"{self.who}: the gradients of single examples, found by running it again on each of them, do not "
                    "add up to its gradient. Its forward draws random numbers, mixes examples, or uses something else "
                    "than its own parameters; make it of known layers, or freeze it."
                )


class RecurrentListener(Listener):
    """Runs an LSTM or a GRU by kernels that report what is needed."""

    layer: nn.LSTM | nn.GRU

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

    def _listened(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        layer = self.layer
        if isinstance(input, PackedSequence) or input.dim() != 3:
            given = "a PackedSequence" if isinstance(input, PackedSequence) else f"a tensor {tuple(input.shape)}"
            raise ModelError(
                f"{self.who}: was given {given}. Give it a padded batch (batch, time, "
                "features), and leave the padding out of the loss."
            )
        self._check_examples(input, "inputs")
        layer.check_input(input, None)
        if hx is not None:
            layer.check_forward_args(input, hx, None)
        outputs, state = run_layers(layer, input, hx, self._report_of)
        outputs.register_hook(self._refuse_twice)  # type: ignore[no-untyped-call]
        return outputs, state

    def _refuse_twice(self, _: Tensor) -> None:
        refuse_twice(self.who)

    def _report_of(self, layer: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], None]:
        return partial(self._reported, layer)

    def _reported(self, layer: int, *record: Tensor) -> None:
        if self._batch.examples:
            self._records.append((layer, record))


def own_parameters(layer: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a layer itself, by all their names."""
    return dict(layer.named_parameters(recurse=False, remove_duplicate=False))


def is_listened_to(layer: nn.Module) -> bool:
    """Whether a listener is attached to a layer."""
    return isinstance(getattr(vars(layer).get("forward"), "__self__", None), Listener)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(value is other[name] for name, value in one.items())
