"""Per-example gradient clipping in one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from lightning_exposure._checks import choice, number, whole_number
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.privacy.clipping._layer_hooks import LayerListener, Listener, RecurrentListener, is_listened_to
from lightning_exposure.privacy.clipping.gradients import Gradient, merged, only, weighted_sum
from lightning_exposure.privacy.clipping.losses import REDUCTIONS, LossReduction
from lightning_exposure.privacy.clipping.norms import measure
from lightning_exposure.privacy.clipping.rounding import full_precision
from lightning_exposure.privacy.clipping.support import layers_of, mixes_examples, refuse_unsupported


class Clipping:
    """Clips the gradient of each example of a batch to a norm, and sums them; in one backward pass.

    While it is attached, it listens to what goes into the layers and which gradients come back, between `begin` and
    `clipped_sum`, in training mode with gradients enabled. Of those, the norm of every example's gradient and the
    clipped sum are computed, mostly without the gradients themselves. Autograd is kept from computing gradients of
    the parameters: after the backward pass their `grad` is None.

    `nn.LSTM` and `nn.GRU` are run by kernels of this library meanwhile, with equal results.

    Args:
        module: What is trained. Its examples are in the first dimension of every layer's inputs, in the same order
            everywhere (in the second one for recurrent layers with `batch_first=False`). Other layouts are refused,
            but one in which another dimension happens to have the size of the batch cannot be told from it.
        max_grad_norm: The norm that no example's gradient exceeds.
        loss_reduction: "mean" if the loss is the mean over the examples, "sum" if it is their sum.

    Attributes:
        examples: How many examples the present batch has; None between two batches.
        norms: The norm of each example's gradient in the last batch, before clipping.

    Raises:
        ModelError: Parts of the module cannot be trained privately; they are named, with remedies.

    Example:
        >>> layer = nn.Linear(3, 1)
        >>> clipping = Clipping(layer, max_grad_norm=0.1)
        >>> with clipping:
        ...     clipping.begin(examples=5)
        ...     layer(torch.randn(5, 3)).mean().backward()
        ...     sums = clipping.clipped_sum()
        >>> sums[layer.weight].shape
        torch.Size([1, 3])
        >>> bool(sums[layer.weight].norm() <= 5 * 0.1)
        True
    """

    def __init__(self, module: nn.Module, *, max_grad_norm: float, loss_reduction: LossReduction = "mean") -> None:
        number("max_grad_norm", max_grad_norm, above=0)
        choice("loss_reduction", loss_reduction, REDUCTIONS)
        self.module = module
        self._refuse_another()
        refuse_unsupported(module)
        self.max_grad_norm = max_grad_norm
        self.loss_reduction = loss_reduction
        self.norms = torch.zeros(0)
        self.on_gradients: Callable[[Mapping[nn.Parameter, Sequence[Gradient]], int], None] | None = None
        self._listeners: list[Listener] = []
        self._guards: list[torch.utils.hooks.RemovableHandle] = []
        self.examples: int | None = None
        self._saw_a_batch = False

    @property
    def listening(self) -> bool:
        """Whether a forward pass now is one of the training, and to be recorded."""
        return self.examples is not None and self.module.training and torch.is_grad_enabled()

    def attach(self) -> None:
        """Begin to listen to the module's layers; done once, however often it is called.

        Raises:
            ModelError: Another Clipping is attached to the module, or the module can no longer be trained privately.
        """
        if self._listeners:
            return
        self._refuse_another()
        refuse_unsupported(self.module)
        for name, layer in layers_of(self.module):
            kind = RecurrentListener if isinstance(layer, nn.LSTM | nn.GRU) else LayerListener
            self._listeners.append(kind(name, layer, self))
        try:
            for listener in self._listeners:
                listener.attach()
        except Exception:
            self.detach()
            raise
        # Statistics over a batch can also be switched on later, by setting a frozen layer to training mode.
        mixing = [part for part in self.module.modules() if hasattr(part, "track_running_stats")]
        self._guards = [part.register_forward_pre_hook(self._refuse_mixing) for part in mixing]

    def detach(self) -> None:
        """Leave the module exactly as it was."""
        for listener in self._listeners:
            listener.detach()
        for guard in self._guards:
            guard.remove()
        self._listeners, self._guards, self.examples = [], [], None

    def begin(self, examples: int) -> None:
        """Say how many examples the coming batch has, before its forward pass.

        Args:
            examples: Their number. 0 for a batch into which no example was drawn: then the model may be shown
                anything in its place, and the clipped sum is zero.
        """
        whole_number("examples", examples, at_least=0)
        if not self._listeners:
            raise ArgumentError("begin: nothing is listened to yet; call attach first.")
        self.examples = examples
        self._forget()
        self._check_layers()
        # What is left of the last step would look like a gradient that nobody clipped.
        for _, parameter in self._trainable():
            parameter.grad = None

    @torch.no_grad()
    def clipped_sum(self) -> dict[nn.Parameter, Tensor]:
        """The sum over the examples of their clipped gradients, after the backward pass.

        Returns:
            For every trainable parameter of the module; zeros where a parameter had no part in the batch.

        Raises:
            ArgumentError: There was no `begin`.
            ModelError: A parameter has a gradient that did not come through its layer, or had no part in the first
                batch.
        """
        if self.examples is None:
            raise ArgumentError("clipped_sum: no batch was announced; call begin before the forward pass.")
        examples, self.examples = self.examples, None
        self._check_layers()
        self._refuse_gradients_outside()
        if examples:
            self._refuse_idle_layers()
        with full_precision(next(self.module.parameters()).device):
            gradients = self._gradients()
            self._forget()
            if self.on_gradients is not None:
                self.on_gradients(gradients, examples)
            found = self._clipped(gradients, examples)
        return {
            parameter: found[parameter] if parameter in found else _zeros(parameter)
            for _, parameter in self._trainable()
        }

    @torch.no_grad()
    def gradients_of(self, places: Sequence[int]) -> Iterator[tuple[str, list[Tensor]]]:
        """The gradients of some examples, as they are before clipping, after the backward pass; ends the batch.

        Args:
            places: Where in the batch they are.

        Returns:
            Name and gradients of every trainable parameter, one after the other.
        """
        if self.examples is None:
            raise ArgumentError("gradients_of: no batch was announced; call begin before the forward pass.")
        scale, self.examples = self.examples if self.loss_reduction == "mean" else 1, None
        self._refuse_gradients_outside()
        gradients = self._gradients()
        self._forget()
        for name, parameter in self._trainable():
            totals = [_zeros(parameter) for _ in places]
            for part in gradients.get(parameter, []):
                for total, place in zip(totals, places, strict=True):
                    one = only(part, place)
                    total += one.weighted_sum(torch.full((1,), float(scale), device=total.device)).view_as(parameter)
            yield name, totals

    def __enter__(self) -> Clipping:
        self.attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _gradients(self) -> dict[nn.Parameter, list[Gradient]]:
        """For each parameter with a part in the batch, the parts of its per-example gradients."""
        found: dict[nn.Parameter, list[Gradient]] = {}
        for listener in self._listeners:
            for parameter, gradient in listener.gradients():
                if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                    found.setdefault(parameter, []).append(gradient)
        return {parameter: merged(parts, parameter.shape) for parameter, parts in found.items()}

    def _clipped(self, gradients: dict[nn.Parameter, list[Gradient]], examples: int) -> dict[nn.Parameter, Tensor]:
        """The clipped sums; measures the norms on the way."""
        if not gradients:
            self.norms = torch.zeros(examples)
            return {}
        # The mean has divided every example's gradient by their number.
        scale = examples if self.loss_reduction == "mean" else 1
        measured = measure(list(gradients.values()), self.max_grad_norm / scale)
        norms = measured.norms * scale
        self.norms = norms.to(next(iter(gradients.values()))[0].dtype)
        broken = int((~norms.isfinite()).sum())
        if broken:
            raise ModelError(
                f"The gradients of {broken} of {examples} examples are infinite or not a number and cannot be clipped. "
                "The training has diverged, or an example is broken: lower the learning rate, or look at the data."
            )
        # The small number is Opacus', so that results can be compared.
        weights = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0) * scale
        return {
            parameter: weighted_sum(parts, weights, apart, _zeros(parameter))
            for (parameter, parts), apart in zip(gradients.items(), measured.apart, strict=True)
        }

    def _refuse_another(self) -> None:
        for name, layer in layers_of(self.module):
            if is_listened_to(layer):
                raise ModelError(f"{name!r} is clipped already: detach the other Clipping of this module first.")

    def _check_layers(self) -> None:
        try:
            for listener in self._listeners:
                listener.check()
        except ModelError:
            self._forget()
            raise

    def _refuse_gradients_outside(self) -> None:
        outside = [name for name, parameter in self._trainable() if parameter.grad is not None]
        if outside:
            self._forget()
            raise ModelError(
                f"{', '.join(map(repr, outside))}: got a gradient that did not come through the layer it belongs to, "
                "so it cannot be clipped. A weight was used outside of its layer's forward (as in "
                "functional.linear(x, self.embedding.weight), or in a penalty in the loss), or its layer was unfrozen "
                "after the clipping was attached. Call the layer itself, share a weight by giving two layers the same "
                "parameter, use the optimizer's weight_decay, attach anew after unfreezing."
            )

    def _refuse_idle_layers(self) -> None:
        idle = [listener.name for listener in self._listeners if not listener.took_part]
        if idle and not self._saw_a_batch:
            self._forget()
            raise ModelError(
                f"{', '.join(map(repr, idle))}: had no part in the loss of the first batch. Use the layer, or freeze "
                "it with requires_grad_(False)."
            )
        self._saw_a_batch = True

    def _refuse_mixing(self, part: nn.Module, inputs: object) -> None:
        if self.listening and mixes_examples(part):
            raise ModelError(
                f"A {type(part).__name__} was set to training mode, where it mixes the examples of a batch; set it to "
                "eval mode again, or replace it by nn.GroupNorm."
            )

    def _trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, value) for name, value in self.module.named_parameters() if value.requires_grad)

    def _forget(self) -> None:
        for listener in self._listeners:
            listener.forget()


def _zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
