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
from lightning_exposure.privacy.clipping._layers import raised, rule_for
from lightning_exposure.privacy.clipping.gradients import Gradient, Products, Whole
from lightning_exposure.privacy.clipping.recurrent_layers import Recurrent, layer_weights, run_layers
from lightning_exposure.privacy.clipping.support import hooked, own_parameters


class Batch(Protocol):
    """What a listener has to know."""

    @property
    def examples(self) -> int | None:
        """How many examples were announced; None between two batches."""

    @property
    def listening(self) -> bool:
        """Whether a forward pass now is one of the training."""

    @property
    def remedy(self) -> str:
        """What to do about a layer that is given something else than the examples; nothing, if the layer knows."""


class Listener(ABC):
    """Listens to one layer. Subclasses say what is recorded.

    It takes the place of the layer's forward, within all hooks: what it sees is what the layer itself reads and
    returns, whatever hooks do before and after. It does so by a bound method, so that a deep copy of the module is
    listened to by a copy of the listener.

    Args:
        name: Of the layer in its module.
        layer: What to listen to.
        batch: Says whether to listen.
        dimension: In which dimension of what the layer reads and returns the examples are.
    """

    def __init__(self, name: str, layer: nn.Module, batch: Batch, dimension: int = 0) -> None:
        self.name = name
        self.layer = layer
        self._batch = batch
        self._dimension = dimension
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
        paused = [value for value in own_parameters(self.layer).values() if value.requires_grad]
        # Where somebody has frozen it for a while, as toggle_optimizer does, it learns nothing from what it is shown.
        if not self._batch.listening or not paused:
            return self._native(*inputs, **options)
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
        examples, dimension = self._batch.examples, self._dimension
        if examples and (tensor.dim() <= dimension or tensor.shape[dimension] != examples):
            raise ModelError(
                f"{self.who}: its {what} have the shape {tuple(tensor.shape)}, where "
                f"dimension {dimension} should be the {examples} examples of the batch. "
                f"{self._batch.remedy or self._remedy(tensor)}"
            )

    def _tapped(self, outputs: Tensor, read: Tensor | None, what: tuple[Any, ...] = ()) -> Tensor:
        """The same outputs; what was read to make them and the gradients that come back to them are recorded.

        Args:
            outputs: No view of another tensor.
            read: None if there is nothing to remember.
            what: Stands before both in the record.
        """
        inputs = (None, 0) if read is None else (read.detach(), writes_to(read))
        held = HeldBack(partial(self._arrived, what, *inputs))
        tap: Callable[..., Tensor] = Tap.apply
        return tap(outputs, held.leaf(outputs.device), held, self.who)

    def _arrived(self, what: tuple[Any, ...], read: Tensor | None, version: int, grads: Tensor) -> None:
        # Autograd no longer watches over the inputs, because the parameters' gradients are none of its business.
        if read is not None and writes_to(read) != version:
            raise ModelError(
                f"{self.who}: its inputs were changed in place after it had read "
                "them. Work on a copy (x = x + y instead of x += y)."
            )
        if self._batch.examples:
            self._records.append((*what, read, grads.detach()))

    def _remedy(self, tensor: Tensor) -> str:
        return (
            "Keep the batch as the first dimension: give the layer (batch, time, features) instead of flattening the "
            "steps into the batch or putting time first. For recurrent layers, use batch_first=True."
        )


class LayerListener(Listener):
    """Listens to a layer that takes a tensor and returns one."""

    def __init__(self, name: str, layer: nn.Module, batch: Batch, dimension: int = 0) -> None:
        super().__init__(name, layer, batch, dimension)
        self._rule = rule_for(layer)
        self._checked = self._rule.names is not None

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""
        told = bool(self._records)
        for read, arrived in self._records:
            inputs, grads = (raised(tensor).movedim(self._dimension, 0) for tensor in (read, arrived))
            found = self._found(inputs, grads)
            if not self._checked:
                told &= self._check_rule(raised(read), raised(arrived), found)
            yield from found
        self._checked = self._checked or told

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
        return self._tapped(self._unshared(outputs, read), read)

    def _unshared(self, outputs: Tensor, read: Tensor) -> Tensor:
        """The outputs as a tensor that is no view of another one.

        Autograd forgets the hooks of a view when something works in place on it, as nn.ReLU(inplace=True) does.
        """
        if self._rule.names is None:
            # Who knows what it has kept for its own backward pass; that must not count as written to.
            return outputs.clone() if is_view(outputs) or outputs is read or outputs.requires_grad else outputs
        # A linear layer gives its result another shape; nobody else has it, so it need not be copied.
        return as_no_view(outputs) if is_view(outputs) else outputs

    def _check_rule(self, read: Tensor, grads: Tensor, found: list[tuple[Tensor | None, Gradient]]) -> bool:
        """Refuse a layer of a kind that is not known here, if its single gradients do not add up to autograd's.

        Returns:
            Whether this could be seen; not if an example has no gradient, which is said of the batch as a whole.
        """
        seen = True
        wanted = [value for value in self.layer.parameters(recurse=False) if value.requires_grad]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            outputs = self._native(read)
            expected = torch.autograd.grad(outputs, wanted, grads, allow_unused=True)
        for parameter, total in zip(wanted, expected, strict=True):
            single = [part.whole() for owner, part in found if owner is parameter]
            size = sum(float(values.flatten(1).norm(dim=1).sum()) for values in single)
            summed = sum((values.sum(0) for values in single), torch.zeros_like(parameter))
            off = float((summed - (0 if total is None else total)).norm())
            if total is not None and not summed.isfinite().all() and not total.isfinite().all():
                seen = False
            elif not off <= 0.01 * size + 1e-12:
                raise ModelError(
                    f"{self.who}: the gradients of single examples, found by running it again on each of them, do not "
                    "add up to its gradient. Its forward draws random numbers, mixes examples, or uses something else "
                    "than its own parameters; make it of known layers, or freeze it."
                )
        return seen


class RecurrentListener(Listener):
    """Runs an LSTM, a GRU or an RNN by kernels that report what is needed."""

    layer: Recurrent

    def gradients(self) -> Iterator[tuple[Tensor | None, Gradient]]:
        """The per-example gradients of the layer's parameters, in parts that add up."""
        for place, order, (inputs, d_inputs, hiddens, d_hiddens, *projection) in self._records:
            left = _examples_first(d_inputs, order)
            # The same object if it is the same: then their Gram matrix is made once.
            other = left if d_hiddens is d_inputs else _examples_first(d_hiddens, order)
            weights = layer_weights(self.layer, place)
            yield weights.w_ih, Products(left, _examples_first(inputs, order))
            yield weights.w_hh, Products(other, _examples_first(hiddens, order))
            if self.layer.bias:
                yield weights.b_ih, Whole(left.sum(1))
                yield weights.b_hh, Whole(other.sum(1))
            if projection:
                memories, d_projected = projection
                yield weights.w_hr, Products(_examples_first(d_projected, order), _examples_first(memories, order))

    def _listened(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        order = None
        if isinstance(input, PackedSequence):
            order = input.unsorted_indices
            self._check_packed(input, hx)
        elif input.dim() != 3:
            raise ModelError(
                f"{self.who}: was given a tensor {tuple(input.shape)}. Give it a padded batch (batch, time, "
                "features) and leave the padding out of the loss, or a PackedSequence."
            )
        else:
            self._check_examples(input, "inputs")
            self.layer.check_input(input, None)
            if hx is not None:
                self.layer.check_forward_args(input, hx, None)
        outputs, state = run_layers(self.layer, input, hx, partial(self._report_of, order))
        # A packed batch holds them.
        tensor = outputs if isinstance(outputs, Tensor) else outputs.data
        tensor.register_hook(self._refuse_twice)
        return outputs, state

    def _check_packed(self, input: PackedSequence, hx: Any) -> None:
        examples, rows = self._batch.examples, int(input.batch_sizes[0])
        if examples and rows != examples:
            raise ModelError(
                f"{self.who}: was given a PackedSequence of {rows} sequences, where there should be one for each of "
                f"the {examples} examples of the batch."
            )
        self.layer.check_input(input.data, input.batch_sizes)
        if hx is not None:
            self.layer.check_forward_args(input.data, hx, input.batch_sizes)

    def _refuse_twice(self, _: Tensor) -> None:
        refuse_twice(self.who)

    def _report_of(self, order: Tensor | None, place: int) -> Callable[..., None]:
        return partial(self._reported, place, order)

    def _reported(self, place: int, order: Tensor | None, *record: Tensor) -> None:
        if self._batch.examples:
            self._records.append((place, order, record))


def _examples_first(tensor: Tensor, order: Tensor | None) -> Tensor:
    """`(time, batch, size)` as `(batch, time, size)`, in the order of the batch if the layer had another one."""
    return tensor.transpose(0, 1) if order is None else tensor.transpose(0, 1)[order]


def is_listened_to(layer: nn.Module) -> bool:
    """Whether a listener is attached to a layer."""
    return isinstance(getattr(vars(layer).get("forward"), "__self__", None), Listener)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(value is other[name] for name, value in one.items())
