"""Per-example gradient clipping in one backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from lightning_exposure._checks import choice, flag, number, whole_number
from lightning_exposure.errors import ArgumentError, ModelError
from lightning_exposure.privacy.clipping._layer_hooks import Listener, is_listened_to
from lightning_exposure.privacy.clipping.gradients import Gradient, merged, only, weighted_sum
from lightning_exposure.privacy.clipping.losses import REDUCTIONS, LossReduction
from lightning_exposure.privacy.clipping.norms import MeasuredNorms, measure
from lightning_exposure.privacy.clipping.rounding import full_precision
from lightning_exposure.privacy.clipping.support import (
    layers_of,
    mixes_examples,
    own_trainable,
    refuse_unsupported,
    time_first,
)
from lightning_exposure.privacy.clipping.treatments import listener_of
from lightning_exposure.privacy.users.grouping import (
    for_each_example,
    groups_of,
    measured_by_user,
    spans_of,
    units_of,
)


class Clipping:
    """Clips the gradient of each example of a batch to a norm, and sums them; in one backward pass.

    While it is attached, it listens to what goes into the layers and which gradients come back, between `begin` and
    `clipped_sum`, with gradients enabled and the module in the mode in which it trains: training mode, unless it was in
    eval mode when the batch began. Of those, the norm of every example's gradient and the clipped sum are computed,
    mostly without the gradients themselves. Autograd is kept from computing gradients of the parameters: after the
    backward pass their `grad` is None.

    `nn.LSTM`, `nn.GRU` and `nn.RNN` are run by kernels of this library meanwhile, with equal results.

    Args:
        module: What is trained. Its examples are in the first dimension of every layer's inputs, in the same order
            everywhere (in the second one for recurrent layers, attention and the layers of PyTorch's Transformers with
            `batch_first=False`). Other layouts are refused,
            but one in which another dimension happens to have the size of the batch cannot be told from it.
        max_grad_norm: The norm that no example's gradient exceeds.
        loss_reduction: "mean" if the loss is the mean over the examples, "sum" if it is their sum.
        per_layer: Clip the gradient of each example layer by layer, each to `max_grad_norm` divided by the root of the
            number of layers: then the whole of it is within `max_grad_norm` too. A parameter that several layers share
            belongs to the first of them.

    Attributes:
        examples: How many examples the present batch has; None between two batches.
        blocks: The parameters over which a norm is taken: all of them, or those of each layer.
        norms: The norm of each example's gradient in the last batch, before clipping; of each user's, if it was one of
            users.
        block_norms: The same for each block of parameters, `(blocks, batch)`.
        within: For each of them 1 if its gradient was within the norm (in all layers), and 0 if it was clipped.

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

    def __init__(
        self,
        module: nn.Module,
        *,
        max_grad_norm: float,
        loss_reduction: LossReduction = "mean",
        per_layer: bool = False,
    ) -> None:
        max_grad_norm = number("max_grad_norm", max_grad_norm, above=0)
        loss_reduction = choice("loss_reduction", loss_reduction, REDUCTIONS)
        self.module = module
        self._refuse_another()
        refuse_unsupported(module)
        self.max_grad_norm = max_grad_norm
        self.loss_reduction = loss_reduction
        self.per_layer = flag("per_layer", per_layer)
        self.blocks: list[tuple[nn.Parameter, ...]] = []
        self.norms = self.within = torch.zeros(0)
        self.block_norms = torch.zeros(0, 0)
        self.on_gradients: Callable[[Mapping[nn.Parameter, Sequence[Gradient]], int], None] | None = None
        self._listeners: list[Listener] = []
        self._guards: list[torch.utils.hooks.RemovableHandle] = []
        self.examples: int | None = None
        self.remedy = ""
        self._saw_a_batch = False
        self._trains_in_eval_mode = False

    @property
    def listening(self) -> bool:
        """Whether a forward pass now is one of the training, and to be recorded."""
        # What trains without dropout is in eval mode all the time; what trains with it is put there to be measured.
        in_its_mode = self.module.training or self._trains_in_eval_mode
        return self.examples is not None and in_its_mode and torch.is_grad_enabled()

    def attach(self) -> None:
        """Begin to listen to the module's layers; done once, however often it is called.

        Raises:
            ModelError: Another Clipping is attached to the module, or the module can no longer be trained privately.
        """
        if self._listeners:
            return
        self._refuse_another()
        refuse_unsupported(self.module)
        in_second = time_first(self.module)
        for name, layer in layers_of(self.module):
            self._listeners.append(listener_of(layer)(name, layer, self, int(id(layer) in in_second)))
        self.blocks = self._divided()
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
                anything in its place, and the clipped sum is zero. `Grouped([2, 1, 3])` for examples of which the
                first two belong to one user, and so on: then the sum of the gradients of each user is clipped.
        """
        count = whole_number("examples", examples, at_least=0)
        if not self._listeners:
            raise ArgumentError("begin: nothing is listened to yet; call attach first.")
        self.examples = examples if isinstance(examples, int) else count  # one of users knows who belongs together
        self._trains_in_eval_mode = not self.module.training
        self.forget()
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
            self.forget()
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
            places: Which examples of the batch; which users, if it is one of users.

        Returns:
            Name and gradients of every trainable parameter, one after the other.
        """
        if self.examples is None:
            raise ArgumentError("gradients_of: no batch was announced; call begin before the forward pass.")
        examples, self.examples = self.examples, None
        scale = examples if self.loss_reduction == "mean" else 1
        self._refuse_gradients_outside()
        gradients = self._gradients()
        self.forget()
        spans = [spans_of(examples)[place] for place in places]
        for name, parameter in self._trainable():
            totals = [_zeros(parameter) for _ in places]
            for part in gradients.get(parameter, []):
                for total, span in zip(totals, spans, strict=True):
                    weights = torch.full((len(span),), float(scale), device=total.device)
                    total += only(part, span).weighted_sum(weights).view_as(parameter)
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
            units = units_of(examples)
            self.norms, self.within = torch.zeros(units), torch.ones(units)
            self.block_norms = torch.zeros(len(self.blocks), units)
            return {}
        # The mean has divided every example's gradient by their number.
        scale = examples if self.loss_reduction == "mean" else 1
        # Within this in each of n blocks, a gradient is within the norm in all of them together.
        limit = self.max_grad_norm / len(self.blocks) ** 0.5
        members = [set(block) for block in self.blocks]
        # A layer that had no part in the batch has no gradients.
        inside = [{p: parts for p, parts in gradients.items() if p in block} for block in members]
        measured = [self._measured(list(some.values()), limit / scale, examples) for some in inside]
        device = next(found.norms.device for found in measured if found is not None)
        nothing = torch.zeros(units_of(examples), dtype=torch.float64, device=device)
        norms = torch.stack([nothing if found is None else found.norms * scale for found in measured])
        self._note(norms, limit, next(iter(gradients.values()))[0].dtype, examples)
        # The small number is Opacus', so that results can be compared.
        weights = for_each_example((limit / (norms + 1e-6)).clamp(max=1.0) * scale, examples)
        return {
            parameter: weighted_sum(parts, weight, apart, _zeros(parameter))
            for some, found, weight in zip(inside, measured, weights, strict=True)
            if found is not None
            for (parameter, parts), apart in zip(some.items(), for_each_example(found.apart, examples), strict=True)
        }

    @staticmethod
    def _measured(parts: list[list[Gradient]], limit: float, examples: int) -> MeasuredNorms | None:
        """The norms over some parameters, of examples or of users; None if none of them had a part in the batch."""
        groups = groups_of(examples)
        if not parts:
            return None
        return measure(parts, limit) if groups is None else measured_by_user(measure, parts, limit, groups)

    def _note(self, norms: Tensor, limit: float, dtype: torch.dtype, examples: int) -> None:
        """Say how long the gradients are in each block of parameters; refuse those that have no length."""
        together = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(norms, dim=0)
        self.norms, self.block_norms = together.to(dtype), norms.to(dtype)
        self.within = (norms <= limit).all(0).to(dtype)
        broken = int((~together.isfinite()).sum())
        if broken:
            who = "examples" if groups_of(examples) is None else "users"
            raise ModelError(
                f"The gradients of {broken} of {len(together)} {who} are infinite or not a number and cannot be "
                "clipped. The training has diverged, or an example is broken: lower the learning rate, or look at the "
                "data."
            )

    def _divided(self) -> list[tuple[nn.Parameter, ...]]:
        """The parameters over which a norm is taken, each in exactly one block."""
        left = dict.fromkeys(value for _, value in self._trainable())
        if not self.per_layer:
            return [tuple(left)]
        blocks = []
        for listener in self._listeners:
            own = [value for value in dict.fromkeys(own_trainable(listener.layer).values()) if value in left]
            for value in own:
                del left[value]
            blocks.append(tuple(own))
        return [block for block in blocks if block]

    def _refuse_another(self) -> None:
        for name, layer in layers_of(self.module):
            if is_listened_to(layer):
                raise ModelError(f"{name!r} is clipped already: detach the other Clipping of this module first.")

    def _check_layers(self) -> None:
        try:
            for listener in self._listeners:
                listener.check()
        except ModelError:
            self.forget()
            raise

    def _refuse_gradients_outside(self) -> None:
        outside = [name for name, parameter in self._trainable() if parameter.grad is not None]
        if outside:
            self.forget()
            raise ModelError(
                f"{', '.join(map(repr, outside))}: got a gradient that did not come through the layer it belongs to, "
                "so it cannot be clipped. A weight was used outside of its layer's forward (as in "
                "functional.linear(x, self.embedding.weight), or in a penalty in the loss), its layer was unfrozen "
                "after the clipping was attached, or the module was put into eval mode after the batch had begun. Call "
                "the layer itself, share a weight by giving two layers the same parameter, use the optimizer's "
                "weight_decay, attach anew after unfreezing, leave the mode as it is in the training step."
            )

    def _refuse_idle_layers(self) -> None:
        idle = [] if self._saw_a_batch else self._idle_layers()
        if idle:
            self.forget()
            raise ModelError(
                f"{', '.join(map(repr, idle))}: had no part in the loss of the first batch. Use the layer, or freeze "
                "it with requires_grad_(False)."
            )
        self._saw_a_batch = True

    def _idle_layers(self) -> list[str]:
        """The names of layers with a parameter that had no part in the batch."""
        # A layer that only holds a table for others, as those of encoder-decoder models do, is never called.
        learnt = {id(p) for one in self._listeners if one.took_part for p in own_trainable(one.layer).values()}
        resting = [one for one in self._listeners if not one.took_part]
        return [one.name for one in resting if not {id(p) for p in own_trainable(one.layer).values()} <= learnt]

    def _refuse_mixing(self, part: nn.Module, inputs: object) -> None:
        if self.listening and mixes_examples(part):
            raise ModelError(
                f"A {type(part).__name__} was set to training mode, where it mixes the examples of a batch; set it to "
                "eval mode again, or replace it by nn.GroupNorm."
            )

    def _trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, value) for name, value in self.module.named_parameters() if value.requires_grad)

    def forget(self) -> None:
        """Drop what the backward passes of the present batch have shown so far."""
        for listener in self._listeners:
            listener.forget()


def _zeros(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, memory_format=torch.contiguous_format)
